/** Chooses the richest update that a device can afford. Pure functions (device/selection/choose.py). */

import * as classStatistics from "./class_statistics.js";
import { classify, misfitReasons } from "./classify.js";
import { withMeasuredMemory, withUpload } from "./cost.js";
import { MaskError, MissingGraph } from "./errors.js";
import { make } from "./kinds/registry.js";

/** @typedef {import("./cost.js").Cost} Cost */
/** @typedef {import("./cost.js").Profile} Profile */
/** @typedef {import("./cost.js").Workload} Workload */
/**
 * How updates of a round are sent, where that is not as their kinds say. `alone`: kinds that too few devices chose in the
 * round before; one is chosen only if no other kind fits. `bytesUp` gives the bytes on the wire of an update of a form; it
 * throws for one that cannot be sent so.
 * @typedef {{alone: string[], bytesUp: (form: any) => number}} UploadTerms
 */

/** Share of the time left that a plan may fill, as predictions are not exact. */
export const MARGIN = 0.9;
/** Why a kind is passed over (UploadTerms). */
const ALONE = "was chosen by too few devices to be summed";

/**
 * One form of an update, its cost, and why it does not fit, if so. `classes`: of how many classes statistics are
 * sent, and of how many they could be.
 */
export class Candidate {
  /** @param {any} strategy @param {Cost | null} cost @param {string[]} reasons @param {[number, number]} classes */
  constructor(strategy, cost, reasons, classes = [0, 0]) {
    this.strategy = strategy;
    this.cost = cost;
    this.misfits = reasons;
    this.classes = classes;
  }

  /** @returns {string} */
  get kind() {
    return this.strategy.name;
  }

  /** The kind, with its form where it has several: "entropy-subset 25%". */
  get label() {
    return `${this.kind} ${this.strategy.form}`.trimEnd();
  }

  /** Of how many classes statistics are sent, if not of all; else empty. */
  get part() {
    const [sent, present] = this.classes;
    return sent < present ? `sends class statistics of ${sent} of ${present} classes` : "";
  }
}

/**
 * What a device decided to do in a round. `chosen` is null when nothing fits: it sits out. `candidates` stand
 * in the order of preference. `straggler` is judged on a *full* update, whether or not the round accepts it.
 */
export class UpdateChoice {
  /**
   * @param {Candidate | null} chosen @param {Candidate[]} candidates
   * @param {import("./classify.js").StragglerVerdict} straggler
   */
  constructor(chosen, candidates, straggler) {
    this.chosen = chosen;
    this.candidates = candidates;
    this.straggler = straggler;
  }

  /** The same choice, cut down to this form and cost when the time ran out. @param {any} form @param {Cost} cost */
  endedAs(form, cost) {
    const chosen = this.chosen && new Candidate(form, cost, this.chosen.misfits, this.chosen.classes);
    return new UpdateChoice(chosen, this.candidates, this.straggler);
  }

  /** Why nothing richer was chosen: a sentence for each form passed over, and for classes not sent. */
  get reasons() {
    const first = this.candidates.findIndex((candidate) => !candidate.misfits.length);
    const passed = first < 0 ? this.candidates : this.candidates.slice(0, first);
    const reasons = [...new Set(passed.map((candidate) => `${candidate.label} ${candidate.misfits.join("; ")}`))];
    return this.chosen?.part ? [...reasons, `${this.chosen.label} ${this.chosen.part}`] : reasons;
  }
}

/**
 * The first kind, in the offer's order, that fits the memory and MARGIN of the remaining seconds. Of a kind with
 * several forms, the richest that fits. Class statistics are reduced if a form does not fit with them: first
 * without second moments, then of as many classes as fit, and without any if nothing fits with these.
 * @param {Profile} profile @param {any[]} kinds @param {Workload} workload @param {number} remainingS
 * @param {UploadTerms | null} [terms] null: each kind says how it is sent @returns {UpdateChoice}
 */
export function choose(profile, kinds, workload, remainingS, terms = null) {
  const usableS = MARGIN * remainingS;
  const forms = kinds.flatMap((kind) => kind.variants());
  const judgements = forms.map((form) => candidate(form, (variant) => judged({ profile, workload, usableS, terms }, variant)));
  const candidates = terms ? inCompany(judgements, terms.alone) : judgements;
  const chosen = candidates.find((option) => !option.misfits.length) ?? null;
  if (!chosen && kinds.some((kind) => kind.statistics)) {
    const plain = kinds.map(classStatistics.withoutClassStatistics);
    if (plain.some((kind, place) => kind !== kinds[place])) return choose(profile, plain, workload, remainingS, terms);
  }
  return new UpdateChoice(chosen, candidates, verdict(profile, candidates, workload, usableS));
}

/** The candidates, of which those of kinds that are `alone` do not fit if others do. @param {Candidate[]} candidates */
function inCompany(candidates, /** @type {string[]} */ alone) {
  const isAlone = (/** @type {Candidate} */ { kind }) => alone.includes(kind);
  if (candidates.every((option) => option.misfits.length || isAlone(option))) return candidates;
  return candidates.map((option) => {
    const isPassed = isAlone(option) && !option.misfits.length;
    return isPassed ? new Candidate(option.strategy, option.cost, [ALONE], option.classes) : option;
  });
}

/**
 * What a form costs here. Raises MissingGraph.
 * @param {any} form @param {Workload} workload @param {Profile} profile @returns {Cost}
 */
export function priced(form, workload, profile) {
  return classStatistics.cost(form, withMeasuredMemory(workload, profile.speed), profile);
}

/**
 * The straggler, judged on a full update with the round's settings, or the usual ones if the round has none.
 * @param {Profile} profile @param {Candidate[]} candidates @param {Workload} workload @param {number} usableS
 */
function verdict(profile, candidates, workload, usableS) {
  const full = candidates.find((option) => option.kind === "full");
  try {
    return classify(full?.cost ?? priced(make("full"), workload, profile), profile.memory, usableS);
  } catch (error) {
    if (!(error instanceof MissingGraph)) throw error;
    return { straggler: true, reasons: [error.message] };
  }
}

/**
 * The form as it is if it fits, else with reduced class statistics if it then fits.
 * @param {any} form @param {(form: any) => Candidate} judge @returns {Candidate}
 */
function candidate(form, judge) {
  const judgement = judge(form);
  if (!judgement.cost || !judgement.misfits.length) return judgement;
  const poorer = classStatistics.withoutMoments(form);
  const less = poorer ? candidate(poorer, judge) : ofFewerClasses(judgement, judge);
  return less?.misfits.length === 0 ? less : judgement;
}

/**
 * With class statistics of as many classes as fit, by bisection; null if even one is too many.
 * @param {Candidate} found @param {(form: any) => Candidate} judge
 */
function ofFewerClasses(whole, judge) {
  let best = null;
  let [fits, over] = [0, whole.classes[0]];
  while (fits + 1 < over) {
    const most = fits ? Math.floor((fits + over) / 2) : 1;
    const judgement = judge(classStatistics.withMostClasses(whole.strategy, most));
    if (judgement.misfits.length) over = most;
    else [best, fits] = [judgement, most];
  }
  return best;
}

/**
 * @param {{profile: Profile, workload: Workload, usableS: number, terms: UploadTerms | null}} at @param {any} form
 * @returns {Candidate}
 */
function judged({ profile, workload, usableS, terms }, form) {
  const unfit = form.unfit(workload);
  if (unfit) return new Candidate(form, null, [unfit]);
  try {
    const clear = priced(form, workload, profile);
    const cost = terms ? withUpload(clear, terms.bytesUp(form), profile) : clear;
    const lacks = misfitReasons(cost, profile.memory, usableS);
    return new Candidate(form, cost, lacks, classStatistics.classCoverage(form, workload));
  } catch (error) {
    const isExpected = error instanceof MissingGraph || error instanceof MaskError;
    if (isExpected) return new Candidate(form, null, [/** @type {Error} */ (error).message]);
    throw error;
  }
}
