/** All kinds of update that a browser trains, by name, and how their settings are read (strategies/kinds/registry.py). */

import { codecNamed } from "../codecs.js";
import { CodecError, KindError, UnknownGenerator } from "../errors.js";
import { nullable, record } from "../records.js";
import { ClassMeans } from "./class_means.js";
import { EntropySubset } from "./entropy_subset.js";
import { FewShot } from "./few_shot.js";
import { FedAvg } from "./fedavg.js";
import { Peft } from "./peft.js";
import { statistics as readStatistics } from "./settings.js";
import { ZerothOrder } from "./zeroth_order.js";

/** All kinds by name, the richest first. */
const KINDS = new Map(
  [FedAvg, Peft, EntropySubset, FewShot, ZerothOrder, ClassMeans].map((Kind) => [
    Kind.kind,
    /** @type {any} */ (Kind),
  ]),
);

/**
 * The kind of this name, with these settings in place of its defaults. Raises KindError.
 * @param {string} name @param {any} [settings] @returns {any}
 */
export function make(name, settings = {}) {
  const Kind = KINDS.get(name);
  if (!Kind)
    throw new KindError(
      `a browser has no kind of update called '${name}'; there are ${[...KINDS.keys()].join(", ")}`,
    );
  if (typeof settings !== "object" || settings === null) throw new KindError(`settings of ${name} are no settings: ${typeof settings}`);
  const { statistics, ...own } = settings;
  const unknown = Object.keys(own)
    .filter((setting) => !Object.hasOwn(Kind.fields, setting))
    .sort();
  if (unknown.length) {
    throw new KindError(
      `${name} has no setting '${unknown[0]}'; it has ${Object.keys(Kind.fields).join(", ")}`,
    );
  }
  try {
    const beside = nullable(readStatistics)(statistics ?? null, `${name}.statistics`);
    const kind = new Kind({ ...record(Kind.fields)(own, name), ...(beside && { statistics: beside }) });
    codecNamed(kind.codec);
    return kind;
  } catch (error) {
    const expected =
      error instanceof RangeError || error instanceof UnknownGenerator || error instanceof CodecError;
    if (!expected) throw error;
    throw new KindError(`settings of ${name}: ${error.message}`);
  }
}

/**
 * The kinds of an offer that a browser supports; an aggregator may offer others. Raises KindError if there is none.
 * @param {{name: string, settings: any}[]} kinds
 * @param {(text: string) => void} [log] called for each kind passed over
 * @returns {any[]}
 */
export function supportedKinds(kinds, log = () => {}) {
  const usable = [];
  const reasons = [];
  for (const { name, settings } of kinds) {
    try {
      usable.push(make(name, settings));
    } catch (error) {
      if (!(error instanceof KindError)) throw error;
      reasons.push(error.message);
    }
  }
  if (!usable.length) throw new KindError(reasons.join("; ") || "no kind of update is offered");
  for (const reason of reasons) log(`passed over: ${reason}`);
  return usable;
}
