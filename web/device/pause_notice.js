/** Telling the aggregator that this device may not work for now, so that no round waits for it. */

/** @typedef {import("./work_gate.js").Hours} Hours */
/** @typedef {import("./presence.js").Voice} Voice */

/** What was told of `hours` by `voice`, and is not told twice. */
export class Standing {
  #hours;
  #voice;
  #paused = false;
  /** @type {{task: string, round: number} | null} */
  #satOut = null;
  /** @type {{plan: any, roomBytes: number} | null} */
  #plan = null;

  /** @param {Hours} hours @param {Voice} voice */
  constructor(hours, voice) {
    this.#hours = hours;
    this.#voice = voice;
  }

  /**
   * What is tried now; it is told again when that goes on after a pause. @param {any} plan
   * @param {number} roomBytes
   */
  plan(plan, roomBytes) {
    this.#plan = { plan, roomBytes };
    this.#voice.plan(plan, roomBytes);
  }

  /** No work may be done. @param {any} offer of the round that is open and has no answer yet, or null */
  pause(offer) {
    if (!this.#paused) {
      this.#paused = true;
      this.#voice.paused(true);
    }
    if (offer && offer.round > 0 && !this.#isSatOut(offer)) {
      const { task, round } = offer;
      this.#satOut = { task, round };
      const nothing = { task, round, kind: "", seconds: 0, memory_bytes: 0, energy_j: 0 };
      this.#voice.plan({ ...nothing, reasons: [this.#hours.reason] }, 0);
    }
  }

  /**
   * Work may be done again. Returns whether it could not be until now: say hello, for nobody waits for us.
   */
  resume() {
    if (!this.#paused) return false;
    this.#paused = false;
    this.#voice.paused(false);
    return true;
  }

  /**
   * A hello says that the device is ready: where it is not, that is said after it. Whoever was told that the
   * device sits a round out is told what it does after all.
   */
  greeted() {
    if (this.#paused) {
      this.#voice.paused(true);
      return;
    }
    const told = this.#plan;
    if (told && this.#isSatOut(told.plan)) this.#voice.plan(told.plan, told.roomBytes);
    this.#satOut = null;
  }

  /** @param {{task: string, round: number}} of */
  #isSatOut({ task, round }) {
    return this.#satOut?.task === task && this.#satOut.round === round;
  }
}
