/** The bandwidth of the device's link, as seen in the transfers that it makes anyway. Bytes per second. */

/** A smaller transfer says more about the way there and back than about the bandwidth. */
export const LARGE_BYTES = 64 * 1024;

/** A moving average over large transfers, for each direction; what was not seen stays as assumed. */
export class LinkSpeed {
  /** @type {number | null} */
  #up = null;
  /** @type {number | null} */
  #down = null;

  /** `size` bytes took this long from sending to the receipt. @param {number} size @param {number} seconds */
  sawUp(size, seconds) {
    this.#up = averaged(this.#up, size, seconds);
  }

  /** `size` bytes took this long from asking to having them. @param {number} size @param {number} seconds */
  sawDown(size, seconds) {
    this.#down = averaged(this.#down, size, seconds);
  }

  /** What was seen, over what is assumed. @param {{up: number, down: number, source: string}} assumed */
  over(assumed) {
    if (this.#up === null && this.#down === null) return assumed;
    return { up: this.#up ?? assumed.up, down: this.#down ?? assumed.down, source: "seen in earlier rounds" };
  }
}

/** @param {number | null} known @param {number} size @param {number} seconds */
function averaged(known, size, seconds, rate = 0.5) {
  if (size < LARGE_BYTES || seconds <= 0) return known;
  const seen = size / seconds;
  return known === null ? seen : (1 - rate) * known + rate * seen;
}
