/** Choosing the richest update that a device can afford, as device_runtime/choose.py. Pure functions. */

import * as classStatistics from "./class_statistics.js";
import { classify, misfits } from "./classify.js";
import { asMeasured } from "./cost.js";
import { MissingGraph } from "./errors.js";
import { make } from "./kinds/registry.js";

/** @typedef {import("./cost.js").Cost} Cost */
/** @typedef {import("./cost.js").Profile} Profile */
/** @typedef {import("./cost.js").Workload} Workload */

/** The share of the time left that a plan may fill: predictions are not exact. */
export const MARGIN = 0.9;

/** One kind of update (in one of its forms), what it would cost, and why it does not fit, if so. */
export class Candidate {
  /** @param {any} strategy @param {Cost | null} cost @param {string[]} reasons */
  constructor(strategy, cost, reasons) {
    this.strategy = strategy;
    this.cost = cost;
    this.misfits = reasons;
  }

  /** @returns {string} */
  get kind() {
    return this.strategy.name;
  }

  /** The kind, with its form where it has several: "entropy-subset 25%". */
  get label() {
    return `${this.kind} ${this.strategy.form}`.trimEnd();
  }
}

/**
 * What one device decided to do in a round. `chosen` is null when nothing fits: it sits out. `candidates`
 * stand in the order of preference. `straggler` is judged on a *full* update, whether or not the round
 * accepts it.
 */
export class Plan {
  /**
   * @param {Candidate | null} chosen @param {Candidate[]} candidates
   * @param {import("./classify.js").Verdict} straggler
   */
  constructor(chosen, candidates, straggler) {
    this.chosen = chosen;
    this.candidates = candidates;
    this.straggler = straggler;
  }

  /** The same where the clock left only this form of what was chosen. @param {any} form @param {Cost} cost */
  endedAs(form, cost) {
    const chosen = this.chosen && new Candidate(form, cost, this.chosen.misfits);
    return new Plan(chosen, this.candidates, this.straggler);
  }

  /** Why nothing richer was chosen: one short sentence for each kind passed over. */
  get reasons() {
    const first = this.candidates.findIndex((candidate) => !candidate.misfits.length);
    const passed = first < 0 ? this.candidates : this.candidates.slice(0, first);
    return passed.map((candidate) => `${candidate.label} ${candidate.misfits.join("; ")}`);
  }
}

/**
 * The first kind, in the offer's order, that fits the memory and MARGIN of the remaining seconds; of a kind
 * with several forms, the richest that fits; without second moments where it does not fit with them, and without
 * class statistics where nothing fits with those.
 * @param {Profile} profile @param {any[]} kinds @param {Workload} workload @param {number} remainingS
 * @returns {Plan}
 */
export function choose(profile, kinds, workload, remainingS) {
  const usableS = MARGIN * remainingS;
  const forms = kinds.flatMap((kind) => kind.variants());
  const candidates = forms.map((form) => candidate({ profile, workload, usableS }, form));
  const chosen = candidates.find((one) => !one.misfits.length) ?? null;
  if (!chosen && kinds.some((kind) => kind.statistics)) {
    const plain = kinds.map(classStatistics.plain);
    if (plain.some((kind, place) => kind !== kinds[place])) return choose(profile, plain, workload, remainingS);
  }
  return new Plan(chosen, candidates, verdict(profile, candidates, workload, usableS));
}

/**
 * What a form costs here. Raises MissingGraph.
 * @param {any} form @param {Workload} workload @param {Profile} profile @returns {Cost}
 */
export function priced(form, workload, profile) {
  return classStatistics.cost(form, asMeasured(workload, profile.speed), profile);
}

/**
 * On a full update with the round's settings, or the usual ones where the round has none.
 * @param {Profile} profile @param {Candidate[]} candidates @param {Workload} workload @param {number} usableS
 */
function verdict(profile, candidates, workload, usableS) {
  const full = candidates.find((one) => one.kind === "full");
  try {
    return classify(full?.cost ?? priced(make("full"), workload, profile), profile.memory, usableS);
  } catch (error) {
    if (!(error instanceof MissingGraph)) throw error;
    return { straggler: true, reasons: [error.message] };
  }
}

/**
 * @param {{profile: Profile, workload: Workload, usableS: number}} at @param {any} form @returns {Candidate}
 */
function candidate({ profile, workload, usableS }, form) {
  const unfit = form.unfit(workload);
  if (unfit) return new Candidate(form, null, [unfit]);
  try {
    const cost = priced(form, workload, profile);
    const lacks = misfits(cost, profile.memory, usableS);
    const poorer = lacks.length ? classStatistics.poorer(form) : null;
    const less = poorer && candidate({ profile, workload, usableS }, poorer);
    return less?.misfits.length === 0 ? less : new Candidate(form, cost, lacks);
  } catch (error) {
    if (error instanceof MissingGraph) return new Candidate(form, null, [error.message]);
    throw error;
  }
}
