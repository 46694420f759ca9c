/** One round's work on the device: choose, train, step down rather than miss the deadline. In seconds. */

import { Candidate, MARGIN, choose, priced } from "./choose.js";
import { ModelError, OutOfMemory, OutOfTime, oneLine } from "./errors.js";

/** @typedef {import("./cost.js").Profile} Profile */
/** @typedef {import("./choose.js").Plan} Plan */

/** The part of what made a kind seem slower that is forgotten in each round in which it is not tried. */
export const FADE = 0.1;

/** The round closed while the work stood still. How long it takes was not seen. */
export class HeldUp extends OutOfTime {
  wholeS = NaN;
}

/**
 * What is tried now. `roomBytes`: what fits on the way up before the update, within the plan's time;
 * `reasons`: why this and nothing richer, what was given up on the way included.
 * @typedef {{plan: Plan, roomBytes: number, reasons: string[]}} Decision
 *
 * What the offer asks. `deadline` is on the device's own clock, uploads included; `lost` says how long the
 * work has stood still.
 * @typedef {{kinds: any[], seed: bigint, deadline: number, lost: () => number,
 *   decided: (decision: Decision) => void}} Assignment
 *
 * Who does it. `train` gives the form that it was in the end, and what came of it; it throws OutOfTime,
 * OutOfMemory, ModelError.
 * @typedef {{workload: import("./cost.js").Workload, clock: () => number, peakBytes: number,
 *   begin: () => void, train: Train}} Worker
 * @typedef {(chosen: Candidate, seed: bigint, deadline: number) => Promise<Trained>} Train
 * @typedef {{form: any, contribution: any}} Trained
 *
 * Seconds of computing that one attempt at a kind was predicted to take, and took.
 * @typedef {{kind: string, predictedS: number, seconds: number}} Timing
 *
 * What came of it. `contribution` is null when the device sat out. `trainTimeS` covers what was given up on
 * the way; so does `energyJ`, which is modelled. `outgrew`: kinds given up for want of memory.
 * @typedef {{plan: Plan, contribution: any, trainTimeS: number, energyJ: number, uncertainty: number,
 *   peakMemoryBytes: number, gaveUp: string[], reasons: string[], timings: Timing[],
 *   outgrew: string[]}} Outcome
 */

/**
 * Train the richest update that fits; when the clock, the memory or the engine says no, the next.
 * @param {Worker} worker @param {Profile} profile @param {Assignment} assignment @returns {Promise<Outcome>}
 */
export async function perform(worker, profile, assignment) {
  const tried = new Tried(assignment.kinds);
  worker.begin();
  const began = worker.clock();
  while (true) {
    const attempt = worker.clock();
    const leftS = assignment.deadline - assignment.lost() - attempt;
    let plan = choose(profile, tried.kinds, worker.workload, leftS);
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

/** @returns {Outcome} */
function outcomeOf(worker, { power }, { plan, contribution, seconds, tried }) {
  const { gaveUp, timings, outgrew } = tried;
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
    outgrew,
  };
}

/** What is left to be tried, what was given up and why, and what each attempt took. */
class Tried {
  /** @type {string[]} */
  gaveUp = [];
  /** @type {Timing[]} */
  timings = [];
  /** @type {string[]} */
  outgrew = [];

  /** @param {any[]} kinds */
  constructor(kinds) {
    this.kinds = kinds;
  }

  /** @param {Candidate} chosen @param {number} seconds */
  took({ kind, cost }, seconds) {
    const predictedS = cost?.computeS ?? 0;
    if (predictedS > 0 && Number.isFinite(seconds)) this.timings.push({ kind, predictedS, seconds });
  }

  /** The forms after this one are left; any other error than those of `train` goes on. */
  giveUp(/** @type {Candidate} */ chosen, /** @type {any} */ error) {
    const expected = [OutOfTime, OutOfMemory, ModelError].some((one) => error instanceof one);
    if (!expected) throw error;
    this.gaveUp = [...this.gaveUp, `${chosen.label} given up: ${oneLine(error)}`];
    if (error instanceof OutOfTime) this.took(chosen, /** @type {any} */ (error).wholeS ?? NaN);
    if (error instanceof OutOfMemory) this.outgrew.push(chosen.kind);
    const forms = this.kinds.flatMap((kind) => kind.variants());
    const labels = forms.map((form) => new Candidate(form, null, []).label);
    this.kinds = forms.slice(labels.indexOf(chosen.label) + 1);
  }
}

/**
 * The profile's corrections after this round: a moving average of measured over predicted seconds, held
 * between 0.1 and 10. What was given up for want of time counts too. What a device was too slow for and did
 * not try is forgotten by a `FADE` each round. @param {Profile} profile @param {Outcome} outcome
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
    const seen = ((profile.corrections.get(kind) ?? 1) * seconds) / predictedS;
    corrections.set(kind, Math.min(10, Math.max(0.1, (1 - rate) * old + rate * seen)));
  }
  return corrections;
}
