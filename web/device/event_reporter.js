import { rows, verdict } from "./explain.js";

/**
 * The events that a device reports, as plain objects that can be sent to another thread. Bytes, seconds, joules;
 * `round` counts from 1.
 *
 * @typedef {import("./explain.js").Row} Row
 * @typedef {{type: "log", level: "info" | "warning" | "error", text: string}} Log
 * @typedef {{type: "link", connected: boolean, reason: string}} Link
 *
 * The task is known here: its bundle has come, and its speed was measured. `why`: why this engine; `forwardS` is for
 * one sample.
 * @typedef {{type: "task", manifest: any, engine: string, why: string, cores: number, memoryBytes: number,
 *   forwardS: number, examples: number}} Task
 * `title`, `about` and `ask` are for people, and may be empty.
 * @typedef {{type: "offer", task: string, run: string, round: number, deadlineS: number, remainingS: number,
 *   done: boolean, title: string, about: string, ask: string}} Offer
 *
 * `have` of the `size` bytes that a round needs have come.
 * @typedef {{type: "fetching", have: number, size: number}} Fetching
 *
 * The plan that is tried now, with all candidates; `label` is empty if the device sits out. `reasons`: why this and
 * nothing richer. `cost` is predicted, and null if nothing is tried.
 * @typedef {{type: "plan", round: number, kind: string, label: string, cost: import("./cost.js").Cost | null,
 *   rows: Row[], straggler: boolean, verdict: string, reasons: string[]}} Plan
 *
 * The share of the work that is done, from 0 to 1, and the seconds that it took; `leftS` is an estimate of the rest.
 * @typedef {{type: "progress", round: number, label: string, share: number, seconds: number,
 *   leftS: number}} Progress
 *
 * A contribution is made, and waits to be sent. `values`: how many numbers it has; `trainLoss` is NaN if nothing was
 * trained. `leastDevices`: a masked one can be read only in a sum of so many devices; 0: it is sent in the clear.
 * @typedef {{type: "made", round: number, kind: string, form: string, label: string, bytesUp: number,
 *   values: number, seconds: number, energyJ: number, numExamples: number, trainLoss: number,
 *   leastDevices: number}} Made
 *
 * The work on a round is over, with or without a contribution.
 * @typedef {{type: "ended", round: number}} Ended
 * @typedef {{type: "receipt", round: number, kind: string, status: string, reason: string}} Receipt
 *
 * The result of the model after `round` rounds on the samples that are held out of training here. `otherHead`: it is of
 * the trained head, and the aggregator may serve the model with a closed-form one.
 * @typedef {{type: "evaluated", round: number, right: number, count: number, loss: number,
 *   otherHead: boolean}} Evaluated
 *
 * Bytes on the wire since the device began.
 * @typedef {{type: "traffic", up: number, down: number}} Traffic
 * @typedef {Log | Link | Task | Offer | Fetching | Plan | Progress | Made | Ended | Receipt | Evaluated |
 *   Traffic} DeviceEvent
 */

/** Seconds between reports of progress. */
const PROGRESS_S = 0.2;
/** Seconds between reports of traffic. */
const TRAFFIC_S = 1;

/** Reports a round's work to `tell` as it goes; `clock` in seconds. */
export class EventReporter {
  #tell;
  #clock;
  /** The attempt in progress. */
  #trying = { round: 0, label: "", computeS: 0, beganS: 0, saidS: 0 };
  /** The download in progress, in bytes; `of` names its round. */
  #fetching = { of: "", have: 0, size: 0 };
  #traffic = { said: 0, saidS: -Infinity };

  /** @param {(event: DeviceEvent) => void} tell @param {() => number} clock */
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

  /** Report progress, from 0 to 1. @param {number} share */
  progressed(share) {
    const { round, label, computeS, beganS, saidS } = this.#trying;
    const now = this.#clock();
    if (now - saidS < PROGRESS_S && share < 1) return;
    this.#trying.saidS = now;
    const seconds = now - beganS;
    const leftS = share > 0.02 ? (seconds * (1 - share)) / share : Math.max(0, computeS - seconds);
    this.#tell({ type: "progress", round, label, share, seconds, leftS });
  }

  /** @param {import("./in_process.js").WorkResult} made with a message */
  made({ round, label, bytesUp, outcome, leastDevices }) {
    const { trainTimeS: seconds, energyJ, contribution } = outcome;
    const { kind, form, numExamples, trainLoss, tensors } = contribution;
    const values = [...tensors.values()].reduce((sum, { data }) => sum + data.length, 0);
    const numbers = { bytesUp, values, seconds, energyJ, numExamples, trainLoss, leastDevices };
    this.#tell({ type: "made", round, kind, form, label, ...numbers });
  }

  /** @param {number} round */
  ended(round) {
    this.#tell({ type: "ended", round });
  }

  /**
   * Note what a round still needs; called again whenever a blob has come. @param {string} of
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

  /** Report the bytes of the link, if they have changed. @param {{bytesUp: number, bytesDown: number}} link */
  traffic({ bytesUp: up, bytesDown: down }) {
    const now = this.#clock();
    const { said: reported, saidS } = this.#traffic;
    if (up + down === reported || now - saidS < TRAFFIC_S) return;
    this.#traffic = { said: up + down, saidS: now };
    this.#tell({ type: "traffic", up, down });
  }

  /**
   * Report how well the model after `round` rounds does. @param {number} round
   * @param {any} found see judging.js; null: it was not judged
   */
  judged(round, figures) {
    if (figures) this.#tell({ type: "evaluated", round, ...figures });
  }
}
