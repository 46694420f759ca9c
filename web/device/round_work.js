/** Works on one open round: fetches what it needs, trains, keeps and sends the result. Part of client/duty.py. */

import { BlobError, DiskError, RoundLeftOut, StaleBase, oneLine } from "./errors.js";
import { isWhole } from "./messages.js";
import { isSame } from "./offers.js";

/** @typedef {import("./offers.js").OpenRound} OpenRound */

export class RoundWork {
  /** The open round. @type {OpenRound | null} */
  open = null;
  /** The round that is being worked on. @type {OpenRound | null} */
  working = null;
  /** The round that was worked on, until its model is judged. @type {OpenRound | null} */
  workedOn = null;
  /** The number of samples in the last hello. */
  samplesInHello = 0;
  #log;
  #parts;
  #readyFor = "";
  /** @type {{of: OpenRound, missing: any[]} | null} */
  #seen = null;
  /** @type {any} */
  #pruned = null;
  #answered = { run: "", round: 0 };

  /**
   * `hello` and `warn` are those of DeviceRounds. @param {(level: string, text: string) => void} log
   * @param {{gate: import("./work_gate.js").WorkGate, backend: import("./in_process.js").InProcess, outbox: any,
   *   downloads: import("./downloads.js").Downloads, sending: import("./sending.js").ContributionSender,
   *   pauseNotice: import("./pause_notice.js").PauseNotice, reporter: import("./event_reporter.js").EventReporter,
   *   hello: () => void, warn: (text: string) => void}} parts
   */
  constructor(log, parts) {
    this.#log = log;
    this.#parts = parts;
  }

  /** Whether the task is known here: its bundle has come, and the samples are read. */
  get ready() {
    return this.#parts.backend.task !== null;
  }

  /** At the next step, ask again what is missing. */
  lookAgain() {
    this.#seen = null;
  }

  /**
   * Fetch what is missing for the open round; when nothing is, get ready (round 0) or work. Throws WorkStopped, and
   * unexpected errors.
   * @param {(done: number) => Promise<void>} progress called while training, from 0 to 1
   */
  async advance(progress) {
    const { open: current } = this;
    if (!current) return;
    const { downloads, gate, hello, warn } = this.#parts;
    const { round } = current.offer;
    try {
      const missing = await this.#preview(current);
      if (!(await downloads.advance(missing, gate.clock()))) this.#endRound(current);
      else if (!missing.length) await this.#work(current, progress);
    } catch (error) {
      if (error instanceof RoundLeftOut) {
        this.#log("warning", `round ${round} left out: ${error.message}`);
        this.#endRound(current);
        return;
      }
      if (!(error instanceof BlobError || error instanceof StaleBase)) {
        this.#endRound(current);
        throw error;
      }
      this.lookAgain();
      warn(`round ${round}: ${error.message}`);
      if (error instanceof StaleBase && !isWhole(current.offer.base)) {
        this.#endRound(current);
        hello(); // asks for the whole offer, which names all blobs that lead to the base
      }
    }
  }

  /** Whether this round was worked on already, by this process or an earlier one. @param {any} offer */
  hasAnswered(offer) {
    return isSame(offer, this.#answered) || this.#parts.outbox.answered(offer.run, offer.round);
  }

  /** End a round, unless another one has taken its place. */
  #endRound(/** @type {OpenRound} */ current) {
    if (this.open === current) this.open = null;
  }

  /** The blobs that the round still needs; asked again when a blob has come. */
  async #preview(/** @type {OpenRound} */ current) {
    if (this.#seen?.of === current) return this.#seen.missing;
    const { backend, reporter, hello } = this.#parts;
    let missing;
    try {
      missing = await backend.preview(current);
    } finally {
      if (this.ready && backend.bundle !== this.#readyFor) {
        this.#readyFor = backend.bundle;
        this.workedOn = null;
        hello();
      }
    }
    this.#seen = { of: current, missing };
    const { run, round } = current.offer;
    reporter.missing(`${run} ${round}`, missing);
    return missing;
  }

  async #work(/** @type {OpenRound} */ current, /** @type {any} */ progress) {
    const { backend, downloads, outbox, gate, reporter } = this.#parts;
    const { offer } = current;
    await backend.prepare(current);
    if (this.workedOn && !isSame(this.workedOn.offer, offer)) this.workedOn = null; // its base is no longer in memory
    if (this.#pruned !== offer) {
      await downloads.prune(offer, [...outbox].map((message) => message.blob));
      this.#pruned = offer;
    }
    if (offer.round > 0 && !this.hasAnswered(offer)) {
      this.working = current;
      try {
        await backend.work(current, {
          progress,
          lost: () => gate.lost(),
          decided: (of, plan, decision) => this.#decided(of, plan, decision),
          made: (made) => this.#made(made),
          waiting: (run) => this.#waiting(run),
        });
      } finally {
        this.working = null;
        reporter.ended(offer.round);
      }
      this.workedOn = current;
    }
    this.#endRound(current);
  }

  /** Send the plan now, so that it travels while the device computes. */
  #decided(/** @type {any} */ offer, /** @type {any} */ plan, /** @type {any} */ decision) {
    this.#parts.pauseNotice.plan(plan, decision.roomBytes);
    this.#parts.reporter.decided(offer.round, decision);
  }

  /** Keep and send the result of a round's work. After that the round is not worked on again. */
  async #made(/** @type {import("./in_process.js").WorkResult} */ made) {
    const { sending, reporter, gate, hello } = this.#parts;
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
    reporter.made(made);
    if (message.num_examples > this.samplesInHello) hello(); // samples have come since the last hello
    await sending.due(gate.clock());
  }

  /** Rounds whose updates have no receipt yet. */
  #waiting(/** @type {string} */ run) {
    const ofRun = [...this.#parts.outbox].filter((message) => message.run === run);
    return new Set(ofRun.map((message) => message.round));
  }
}
