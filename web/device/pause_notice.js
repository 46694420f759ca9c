/**
 * Tells the aggregator, once, whether this device is paused, so that no round waits for it. Part of
 * client/connection/presence.py.
 */

/** @typedef {import("./work_gate.js").WorkGate} WorkGate */
/** @typedef {import("./presence.js").DeviceMessages} DeviceMessages */

/** Sends pauses of the work gate `gate` by `messages`, each only once. */
export class PauseNotice {
  #gate;
  #messages;
  #paused = false;
  /** @type {{task: string, round: number} | null} */
  #satOut = null;
  /** @type {{plan: any, roomBytes: number} | null} */
  #plan = null;

  /** @param {WorkGate} gate @param {DeviceMessages} messages */
  constructor(gate, messages) {
    this.#gate = gate;
    this.#messages = messages;
  }

  /**
   * Send the current plan; it is sent again when its work goes on after a pause. @param {any} plan
   * @param {number} roomBytes
   */
  plan(plan, roomBytes) {
    this.#plan = { plan, roomBytes };
    this.#messages.plan(plan, roomBytes);
  }

  /** No work is allowed. @param {any} offer that of the open round, if it has no answer yet; else null */
  pause(offer) {
    if (!this.#paused) {
      this.#paused = true;
      this.#messages.paused(true);
    }
    if (offer && offer.round > 0 && !this.#isSatOut(offer)) {
      const { task, round } = offer;
      this.#satOut = { task, round };
      const nothing = { task, round, kind: "", seconds: 0, memory_bytes: 0, energy_j: 0 };
      this.#messages.plan({ ...nothing, reasons: [this.#gate.reason] }, 0);
    }
  }

  /**
   * Work is allowed. Returns whether it was not until now: the device must then say hello, as no round waits for it.
   */
  resume() {
    if (!this.#paused) return false;
    this.#paused = false;
    this.#messages.paused(false);
    return true;
  }

  /**
   * A hello says that the device is ready: if it is paused, say so after the hello. If the device has told that it sits
   * the round out, tell its plan after all.
   */
  helloSent() {
    if (this.#paused) {
      this.#messages.paused(true);
      return;
    }
    const told = this.#plan;
    if (told && this.#isSatOut(told.plan)) this.#messages.plan(told.plan, told.roomBytes);
    this.#satOut = null;
  }

  /** @param {{task: string, round: number}} of */
  #isSatOut({ task, round }) {
    return this.#satOut?.task === task && this.#satOut.round === round;
  }
}
