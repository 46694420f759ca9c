/** Decides whether a device rests, as the aggregator wants nothing that it would send (device/selection/resting.py). */

import { statisticsOf } from "./class_statistics.js";
import { rngOf } from "./randomness.js";

/** The lowest probabilities of taking part, in percent. */
const LEAST_STATISTICS = 10;
const LEAST_TRAINING = 30;

/**
 * Why the device rests in the round with this seed; empty if it takes part or sits out.
 * @param {{statistics: Uint8Array, training: Uint8Array}} shortages @param {{seed: bigint, device: string}} run
 * @param {import("./choose.js").UpdateChoice} plan @param {import("./cost.js").Workload} load
 */
export async function restReason(shortages, { seed, device }, { chosen, straggler }, load) {
  const trains = chosen?.strategy.trainsExtractor;
  if (!chosen || (trains && !straggler.straggler)) return "";
  const [short, least] = trains ? [shortages.training, LEAST_TRAINING] : [shortages.statistics, LEAST_STATISTICS];
  if (short.length !== load.classCounts.length) return "";
  const smallest = statisticsOf(chosen.strategy)?.smallest_count ?? 1;
  const lacks = load.classCounts.map((count, label) => (count >= smallest ? short[label] : 0));
  const percent = Math.max(least, ...lacks);
  const [drawn] = (await rngOf({ seed, device: `${device}:rests` })).random(1);
  if (Math.trunc(100 * drawn) < percent) return "";
  const what = trains ? "training" : "statistics";
  return (
    `rests: nothing wanted (${chosen.label} brings ${what} of classes that are common; ` +
    `it takes part in ${percent}% of the rounds)`
  );
}
