/** One open round: what it needs is fetched, it is worked on, what comes of it is kept and sent: of client/duty.py. */

import { BlobError, DiskError, LeftOut, StaleBase, oneLine } from "./errors.js";
import { isWhole } from "./messages.js";
import { isSame } from "./offers.js";

/** @typedef {import("./offers.js").Open} Open */

export class Advancing {
  /** The round in hand. @type {Open | null} */
  open = null;
  /** The one that is being worked on. @type {Open | null} */
  working = null;
  /** The one that was worked on, until its model is judged. @type {Open | null} */
  workedOn = null;
  /** What the last hello said that there is. */
  samplesSaid = 0;
  #log;
  #parts;
  #readyFor = "";
  /** @type {{of: Open, missing: any[]} | null} */
  #seen = null;
  /** @type {any} */
  #pruned = null;
  #answered = { run: "", round: 0 };

  /**
   * `hello` and `warn` are Duty's. @param {(level: string, text: string) => void} log
   * @param {{hours: import("./work_gate.js").Hours, place: import("./in_process.js").Here, outbox: any,
   *   downloads: import("./downloads.js").Downloads, sending: import("./sending.js").Sending,
   *   standing: import("./pause_notice.js").Standing, telling: import("./telling.js").Telling,
   *   hello: () => void, warn: (text: string) => void}} parts
   */
  constructor(log, parts) {
    this.#log = log;
    this.#parts = parts;
  }

  /** Whether the task is known here: its bundle has come, and the samples are read. */
  get ready() {
    return this.#parts.place.task !== null;
  }

  /** What is missing is to be looked at again. */
  lookAgain() {
    this.#seen = null;
  }

  /**
   * Fetch what is missing of the round in hand; when nothing is, get ready (round 0) or work. Throws Stopped,
   * and what nobody expected.
   * @param {(done: number) => Promise<void>} progress told of training, from 0 to 1
   */
  async onward(progress) {
    const { open: current } = this;
    if (!current) return;
    const { downloads, hours, hello, warn } = this.#parts;
    const { round } = current.offer;
    try {
      const missing = await this.#look(current);
      if (!(await downloads.advance(missing, hours.clock()))) this.#leave(current);
      else if (!missing.length) await this.#work(current, progress);
    } catch (error) {
      if (error instanceof LeftOut) {
        this.#log("warning", `round ${round} left out: ${error.message}`);
        this.#leave(current);
        return;
      }
      if (!(error instanceof BlobError || error instanceof StaleBase)) {
        this.#leave(current);
        throw error;
      }
      this.lookAgain();
      warn(`round ${round}: ${error.message}`);
      if (error instanceof StaleBase && !isWhole(current.offer.base)) {
        this.#leave(current);
        hello(); // for the whole offer, which names all that leads there
      }
    }
  }

  /** Whether this round was worked on already, in this life or an earlier one. @param {any} offer */
  hasAnswered(offer) {
    return isSame(offer, this.#answered) || this.#parts.outbox.answered(offer.run, offer.round);
  }

  /** Done with a round, unless another has come meanwhile. */
  #leave(/** @type {Open} */ current) {
    if (this.open === current) this.open = null;
  }

  /** What is missing for it; looked at again when something has come. */
  async #look(/** @type {Open} */ current) {
    if (this.#seen?.of === current) return this.#seen.missing;
    const { place, telling, hello } = this.#parts;
    let missing;
    try {
      missing = await place.look(current);
    } finally {
      if (this.ready && place.bundle !== this.#readyFor) {
        this.#readyFor = place.bundle;
        this.workedOn = null;
        hello();
      }
    }
    this.#seen = { of: current, missing };
    const { run, round } = current.offer;
    telling.missing(`${run} ${round}`, missing);
    return missing;
  }

  async #work(/** @type {Open} */ current, /** @type {any} */ progress) {
    const { place, downloads, outbox, hours, telling } = this.#parts;
    const { offer } = current;
    await place.prepare(current);
    if (this.workedOn && !isSame(this.workedOn.offer, offer)) this.workedOn = null; // its base is at hand no more
    if (this.#pruned !== offer) {
      await downloads.prune(offer, [...outbox].map((message) => message.blob));
      this.#pruned = offer;
    }
    if (offer.round > 0 && !this.hasAnswered(offer)) {
      this.working = current;
      try {
        await place.work(current, {
          progress,
          lost: () => hours.lost(),
          decided: (of, plan, decision) => this.#decided(of, plan, decision),
          made: (made) => this.#made(made),
          waiting: (run) => this.#waiting(run),
        });
      } finally {
        this.working = null;
        telling.ended(offer.round);
      }
      this.workedOn = current;
    }
    this.#leave(current);
  }

  /** Tell what is tried now, so that the word travels while the device computes. */
  #decided(/** @type {any} */ offer, /** @type {any} */ plan, /** @type {any} */ decision) {
    this.#parts.standing.plan(plan, decision.roomBytes);
    this.#parts.telling.decided(offer.round, decision);
  }

  /** Keep and send what came of a round's work. After that it is not done again. */
  async #made(/** @type {import("./in_process.js").Made} */ made) {
    const { sending, telling, hours, hello } = this.#parts;
    const { run, round, message, trouble } = made;
    if (!message && !trouble) {
      this.#log("warning", `round ${round}: sitting out: ${made.reasons.join("; ")}`);
      return;
    }
    this.#answered = { run, round };
    if (!message) {
      this.#log("warning", `round ${round} left out: ${trouble}`);
      return;
    }
    try {
      await sending.keep(message);
    } catch (error) {
      if (!(error instanceof BlobError || error instanceof DiskError)) throw error;
      this.#log("warning", `round ${round} left out: its contribution cannot be kept: ${oneLine(error)}`);
      return;
    }
    telling.made(made);
    if (message.num_examples > this.samplesSaid) hello(); // some have come since
    await sending.due(hours.clock());
  }

  /** Rounds whose updates have no receipt yet. */
  #waiting(/** @type {string} */ run) {
    const ofRun = [...this.#parts.outbox].filter((message) => message.run === run);
    return new Set(ofRun.map((message) => message.round));
  }
}
