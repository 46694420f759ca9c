/** Masks an update for the helpers of an offer, so that the aggregator can read only sums of updates. */
import { withClassStatistics } from "../class_statistics.js";
import { make } from "../kinds/registry.js";
import { layoutOf } from "./layout.js";
import { KEY_BYTES, seal } from "./seeds.js";
import { write } from "./sums.js";

/** `size` random bytes. @param {number} size */
const drawn = (size) => crypto.getRandomValues(new Uint8Array(size));

/**
 * The content of a masked contribution, its mask, and what was shortened so that it fits ("" for nothing). The layout
 * is that of the offer's class statistics, even if this update has fewer. Rejects with MaskError, as `write` and `seal`.
 * @param {import("../kinds/kind.js").TrainedUpdate} update @param {any} form of the kind, which made it
 * @param {{offer: any, base: import("../flat.js").Tensors, manifest: any, device: string}} given an offer with masks
 * @param {(size: number) => Uint8Array} [draw]
 */
export async function masked(update, form, { offer, base, manifest, device }, draw = drawn) {
  const { task, run, round, masks } = offer;
  const { min_group, noise_milli, clip_milli } = masks;
  const offered = offer.kinds.find((/** @type {any} */ { name }) => name === update.kind);
  const strategy = withClassStatistics(form, make(update.kind, offered.settings).statistics);
  const layout = layoutOf(strategy, manifest, base, masks);
  const weighed = { update, strategy, mostWeight: masks.most_weight };
  const { vector, note } = write(weighed, layout, clip_milli / 1000);
  const made = { kind: update.kind, form: update.form, exponents: noise_milli ? layout.exponents : [] };
  const purpose = { task, run, round, ...made, device, min_group, noise_milli, clip_milli };
  const { mask, seeds } = await seal(draw(KEY_BYTES), masks.helpers.map((/** @type {any} */ { key }) => key), purpose);
  vector.addMasks(seeds);
  return { body: vector.bytes, mask, note };
}
