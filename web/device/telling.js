import { rows, verdict } from "./explain.js";

/**
 * What a device tells of what happens, as plain objects that may cross from one thread to another. Bytes,
 * seconds, joules; `round` counts from 1.
 *
 * @typedef {import("./explain.js").Row} Row
 * @typedef {{type: "log", level: "info" | "warning" | "error", text: string}} Log
 * @typedef {{type: "link", connected: boolean, reason: string}} Link
 *
 * A task that is known here: its bundle has come, and how fast it is was measured. `why`: this engine;
 * `forwardS` is for one sample.
 * @typedef {{type: "task", manifest: any, engine: string, why: string, cores: number, memoryBytes: number,
 *   forwardS: number, examples: number}} Task
 * @typedef {{type: "offer", task: string, run: string, round: number, deadlineS: number, remainingS: number,
 *   done: boolean}} Offer
 *
 * Of what a round needs so many bytes have come, of so many.
 * @typedef {{type: "fetching", have: number, size: number}} Fetching
 *
 * What is tried now, of all that was thought of; `label` is empty where the device sits out. `reasons`: why
 * this and nothing richer. `cost` is predicted, and null where nothing is tried.
 * @typedef {{type: "plan", round: number, kind: string, label: string, cost: import("./cost.js").Cost | null,
 *   rows: Row[], straggler: boolean, verdict: string, reasons: string[]}} Plan
 *
 * So much is done, from 0 to 1, in so many seconds; `leftS` is an estimate.
 * @typedef {{type: "progress", round: number, label: string, share: number, seconds: number,
 *   leftS: number}} Progress
 *
 * A contribution is made, and waits to be sent. `values`: numbers in it; `trainLoss` is NaN where nothing was
 * trained.
 * @typedef {{type: "made", round: number, kind: string, form: string, label: string, bytesUp: number,
 *   values: number, seconds: number, energyJ: number, numExamples: number, trainLoss: number}} Made
 *
 * The work on a round is over, whatever came of it.
 * @typedef {{type: "ended", round: number}} Ended
 * @typedef {{type: "receipt", round: number, kind: string, status: string, reason: string}} Receipt
 *
 * The model after so many rounds, on samples that are kept out of training here.
 * @typedef {{type: "evaluated", round: number, right: number, count: number, loss: number}} Evaluated
 *
 * Bytes on the link since the device began, as they are on the wire.
 * @typedef {{type: "traffic", up: number, down: number}} Traffic
 * @typedef {Log | Link | Task | Offer | Fetching | Plan | Progress | Made | Ended | Receipt | Evaluated |
 *   Traffic} Happening
 */

/** Seconds between words on how far work has come. */
const PROGRESS_S = 0.2;
/** And between words on what the link has carried. */
const TRAFFIC_S = 1;

/** A round's work, told to `tell` as it goes; `clock` in seconds. */
export class Telling {
  #tell;
  #clock;
  /** Of what is being tried. */
  #trying = { round: 0, label: "", computeS: 0, beganS: 0, saidS: 0 };
  /** Of what a round needs, in bytes. */
  #fetching = { of: "", have: 0, size: 0 };
  #traffic = { said: 0, saidS: -Infinity };

  /** @param {(event: Happening) => void} tell @param {() => number} clock */
  constructor(tell, clock) {
    this.#tell = tell;
    this.#clock = clock;
  }

  /** @param {number} round @param {import("./work.js").Decision} decision */
  decided(round, { plan, reasons }) {
    const { chosen, straggler } = plan;
    const [kind, label, cost] = [chosen?.kind ?? "", chosen?.label ?? "", chosen?.cost ?? null];
    const now = this.#clock();
    this.#trying = { round, label, computeS: cost?.computeS ?? 0, beganS: now, saidS: now };
    const why = { rows: rows(plan), verdict: verdict(plan), reasons };
    this.#tell({ type: "plan", round, kind, label, cost, straggler: straggler.straggler, ...why });
  }

  /** So much is done, from 0 to 1. @param {number} share */
  progressed(share) {
    const { round, label, computeS, beganS, saidS } = this.#trying;
    const now = this.#clock();
    if (now - saidS < PROGRESS_S && share < 1) return;
    this.#trying.saidS = now;
    const seconds = now - beganS;
    const leftS = share > 0.02 ? (seconds * (1 - share)) / share : Math.max(0, computeS - seconds);
    this.#tell({ type: "progress", round, label, share, seconds, leftS });
  }

  /** @param {import("./in_process.js").Made} made with a message */
  made({ round, label, bytesUp, outcome }) {
    const { trainTimeS: seconds, energyJ, contribution } = outcome;
    const { kind, form, numExamples, trainLoss, tensors } = contribution;
    const values = [...tensors.values()].reduce((sum, { data }) => sum + data.length, 0);
    const numbers = { bytesUp, values, seconds, energyJ, numExamples, trainLoss };
    this.#tell({ type: "made", round, kind, form, label, ...numbers });
  }

  /** @param {number} round */
  ended(round) {
    this.#tell({ type: "ended", round });
  }

  /**
   * What a round still needs; said again whenever a blob is here. @param {string} of
   * @param {{size: number}[]} missing
   */
  missing(of, missing) {
    const left = missing.reduce((sum, blob) => sum + blob.size, 0);
    const size = of === this.#fetching.of ? Math.max(left, this.#fetching.size) : left;
    this.#fetching = { of, have: size - left, size };
  }

  /** @param {number} bytes */
  received(bytes) {
    const { size } = this.#fetching;
    if (!size) return;
    const have = Math.min(this.#fetching.have + bytes, size);
    this.#fetching.have = have;
    this.#tell({ type: "fetching", have, size });
  }

  /** @param {any} receipt @param {string} kind */
  receipted({ round, status, reason }, kind) {
    this.#tell({ type: "receipt", round, kind, status, reason });
  }

  /** What the link has carried, where that has changed. @param {{bytesUp: number, bytesDown: number}} link */
  traffic({ bytesUp: up, bytesDown: down }) {
    const now = this.#clock();
    const { said, saidS } = this.#traffic;
    if (up + down === said || now - saidS < TRAFFIC_S) return;
    this.#traffic = { said: up + down, saidS: now };
    this.#tell({ type: "traffic", up, down });
  }

  /**
   * The model after so many rounds. @param {number} round
   * @param {any} found see judging.js; null: nothing was
   */
  judged(round, found) {
    if (found) this.#tell({ type: "evaluated", round, ...found });
  }
}
