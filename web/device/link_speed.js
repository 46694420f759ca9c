/** Estimates the bandwidth of the device's link from the transfers of its rounds (device/traffic.py). */

/** Smaller transfers are ignored: they measure the round trip rather than the bandwidth. */
export const LARGE_BYTES = 64 * 1024;

/** A moving average over large transfers, for each direction; assumed values hold until one is seen. */
export class LinkSpeed {
  /** @type {number | null} */
  #up = null;
  /** @type {number | null} */
  #down = null;

  /** `size` bytes took `seconds` from sending to the receipt. @param {number} size @param {number} seconds */
  sawUp(size, seconds) {
    this.#up = averaged(this.#up, size, seconds);
  }

  /** `size` bytes took `seconds` from asking to having them. @param {number} size @param {number} seconds */
  sawDown(size, seconds) {
    this.#down = averaged(this.#down, size, seconds);
  }

  /** The bandwidth seen, or assumed where none was. @param {{up: number, down: number, source: string}} assumed */
  over(assumed) {
    if (this.#up === null && this.#down === null) return assumed;
    return { up: this.#up ?? assumed.up, down: this.#down ?? assumed.down, source: "seen in earlier rounds" };
  }
}

/** @param {number | null} known @param {number} size @param {number} seconds */
function averaged(average, size, seconds, rate = 0.5) {
  if (size < LARGE_BYTES || seconds <= 0) return average;
  const rateSeen = size / seconds;
  return average === null ? rateSeen : (1 - rate) * average + rate * rateSeen;
}
