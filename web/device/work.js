/**
 * One round's work on a device: choose a form of update, train it, and step down if it does not fit
 * (device/training/work.py). Times in seconds.
 */

import { Candidate, MARGIN, choose, priced } from "./choose.js";
import { ModelError, OutOfMemory, OutOfTime, oneLine } from "./errors.js";

/** @typedef {import("./cost.js").Profile} Profile */
/** @typedef {import("./choose.js").UpdateChoice} UpdateChoice */

/** Share of a correction of time that is forgotten in each round in which the kind is not tried. */
export const FADE = 0.1;

/** The round closed while the work was paused, so its duration is not known. */
export class ClosedWhilePaused extends OutOfTime {
  wholeS = NaN;
}

/**
 * What is tried now. `roomBytes`: bytes that can be sent before the update, within the plan's time; `reasons`: why this
 * and nothing richer, including what was given up before.
 * @typedef {{plan: UpdateChoice, roomBytes: number, reasons: string[]}} Decision
 *
 * What the offer asks. `deadline` is on the device's own clock and includes the upload; `lost` gives the seconds that
 * the work has been paused. `terms`: as `choose` takes them.
 * @typedef {{kinds: any[], terms?: import("./choose.js").UploadTerms | null, seed: bigint, deadline: number, lost: () => number,
 *   decided: (decision: Decision) => void}} Assignment
 *
 * Does an assignment. `train` returns the form that it was in the end, and the update; it throws OutOfTime,
 * OutOfMemory, ModelError.
 * @typedef {{workload: import("./cost.js").Workload, clock: () => number, peakBytes: number,
 *   begin: () => void, train: Train}} AssignmentWorker
 * @typedef {(chosen: Candidate, seed: bigint, deadline: number) => Promise<Trained>} Train
 * @typedef {{form: any, contribution: any}} Trained
 *
 * Seconds of computing of one attempt at a kind of update, as predicted and as measured.
 * @typedef {{kind: string, predictedS: number, seconds: number}} Timing
 *
 * The result of a round's work. `contribution` is null when the device sat out. `trainTimeS` includes attempts that
 * were given up; so does `energyJ`, which is modelled. `outOfMemoryKinds`: kinds given up for lack of memory.
 * @typedef {{plan: UpdateChoice, contribution: any, trainTimeS: number, energyJ: number, uncertainty: number,
 *   peakMemoryBytes: number, gaveUp: string[], reasons: string[], timings: Timing[],
 *   outOfMemoryKinds: string[]}} WorkOutcome
 */

/**
 * Train the richest update that fits; if time, memory or the engine fails, try the next.
 * @param {AssignmentWorker} worker @param {Profile} profile @param {Assignment} assignment
 * @returns {Promise<WorkOutcome>}
 */
export async function perform(worker, profile, assignment) {
  const tried = new Tried(assignment.kinds);
  worker.begin();
  const began = worker.clock();
  while (true) {
    const attempt = worker.clock();
    const leftS = assignment.deadline - assignment.lost() - attempt;
    let plan = choose(profile, tried.kinds, worker.workload, leftS, assignment.terms);
    const { chosen } = plan;
    const roomBytes = MARGIN * leftS * profile.bandwidth.up - (chosen?.cost?.bytesUp ?? 0);
    assignment.decided({ plan, roomBytes, reasons: [...plan.reasons, ...tried.gaveUp] });
    let contribution = null;
    if (chosen) {
      try {
        const mustEnd = assignment.deadline - (chosen.cost?.bytesUp ?? 0) / profile.bandwidth.up;
        const done = await worker.train(chosen, assignment.seed, mustEnd);
        contribution = done.contribution;
        if (done.form !== chosen.strategy) {
          plan = plan.endedAs(done.form, priced(done.form, worker.workload, profile));
        }
        tried.took(plan.chosen ?? chosen, worker.clock() - attempt);
      } catch (error) {
        tried.giveUp(chosen, error);
        continue;
      }
    }
    return outcomeOf(worker, profile, { plan, contribution, seconds: worker.clock() - began, tried });
  }
}

/** @returns {WorkOutcome} */
function outcomeOf(worker, { power }, { plan, contribution, seconds, tried }) {
  const { gaveUp, timings, outOfMemoryKinds } = tried;
  return {
    plan,
    contribution,
    trainTimeS: seconds,
    energyJ: seconds * Math.max(power.idleW, power.loadW),
    uncertainty: power.uncertainty,
    peakMemoryBytes: worker.peakBytes,
    gaveUp,
    reasons: [...plan.reasons, ...gaveUp],
    timings,
    outOfMemoryKinds,
  };
}

/** The kinds left to try, what was given up and why, and the time that each attempt took. */
class Tried {
  /** @type {string[]} */
  gaveUp = [];
  /** @type {Timing[]} */
  timings = [];
  /** @type {string[]} */
  outOfMemoryKinds = [];

  /** @param {any[]} kinds */
  constructor(kinds) {
    this.kinds = kinds;
  }

  /** @param {Candidate} chosen @param {number} seconds */
  took({ kind, cost }, seconds) {
    const predictedS = cost?.computeS ?? 0;
    if (predictedS > 0 && Number.isFinite(seconds)) this.timings.push({ kind, predictedS, seconds });
  }

  /** Give up a form: the forms after it are left to try. Errors that `train` does not declare are thrown again. */
  giveUp(/** @type {Candidate} */ chosen, /** @type {any} */ error) {
    const expected = [OutOfTime, OutOfMemory, ModelError].some((kind) => error instanceof kind);
    if (!expected) throw error;
    this.gaveUp = [...this.gaveUp, `${chosen.label} given up: ${oneLine(error)}`];
    if (error instanceof OutOfTime) this.took(chosen, /** @type {any} */ (error).wholeS ?? NaN);
    if (error instanceof OutOfMemory) this.outOfMemoryKinds.push(chosen.kind);
    const forms = this.kinds.flatMap((kind) => kind.variants());
    const labels = forms.map((form) => new Candidate(form, null, []).label);
    this.kinds = forms.slice(labels.indexOf(chosen.label) + 1);
  }
}

/**
 * The profile's corrections after this round: a moving average of measured over predicted seconds, between 0.1 and 10.
 * An attempt that ran out of time counts too. A correction of a kind that was too slow to be tried fades by `FADE` each
 * round. @param {Profile} profile @param {WorkOutcome} outcome
 * @returns {Map<string, number>}
 */
export function corrected(profile, outcome, rate = 0.3) {
  const tried = new Set(outcome.timings.map((timing) => timing.kind));
  const corrections = new Map();
  for (const [kind, old] of profile.corrections) {
    corrections.set(kind, tried.has(kind) || old <= 1 ? old : 1 + (1 - FADE) * (old - 1));
  }
  for (const { kind, predictedS, seconds } of outcome.timings) {
    const old = corrections.get(kind) ?? 1;
    const ratio = ((profile.corrections.get(kind) ?? 1) * seconds) / predictedS;
    corrections.set(kind, Math.min(10, Math.max(0.1, (1 - rate) * old + rate * ratio)));
  }
  return corrections;
}
