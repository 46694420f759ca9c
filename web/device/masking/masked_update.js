/**
 * Masks an update for the helpers of an offer, so that the aggregator can read only sums of updates
 * (device/masking/masked_update.py).
 */
import { withClassStatistics } from "../class_statistics.js";
import { MaskError } from "../errors.js";
import { make } from "../kinds/registry.js";
import { ENVELOPE_BYTES } from "../workload.js";
import { layoutOf } from "./layout.js";
import { KEY_BYTES, seal } from "./seeds.js";
import { write } from "./sums.js";

/** @typedef {import("../manifest.js").Manifest} Manifest */

/** `size` random bytes. @param {number} size */
const drawn = (size) => crypto.getRandomValues(new Uint8Array(size));

/**
 * The content of a masked contribution, its mask, and what was shortened so that it fits ("" for nothing). Rejects with
 * MaskError for an update that cannot be masked.
 * @param {import("../kinds/kind.js").Update} update @param {any} form of the kind, which made it
 * @param {{offer: any, base: import("../flat.js").Tensors, manifest: Manifest, device: string}} given with masks
 * @param {(size: number) => Uint8Array} [draw]
 */
export async function masked(update, form, { offer, base, manifest, device }, draw = drawn) {
  const { task, run, round, masks } = offer;
  const { min_group, noise_milli, clip_milli } = masks;
  const { kind, strategy } = asOffered(offer, form);
  const layout = layoutOf(strategy, manifest, base, masks);
  const weighed = { update, strategy, mostWeight: masks.most_weight, kind };
  const { vector, note } = write(weighed, layout, clip_milli / 1000);
  const about = { kind: update.kind, form: update.form, exponents: noise_milli ? layout.exponents : [] };
  const purpose = { task, run, round, ...about, device, min_group, noise_milli, clip_milli };
  const { mask, seeds } = await seal(draw(KEY_BYTES), masks.helpers.map((/** @type {any} */ { key }) => key), purpose);
  vector.addMasks(seeds);
  return { body: vector.bytes, mask, note };
}

/**
 * How updates of an offer with masks are sent. @param {any} offer with masks @param {Manifest} manifest
 * @returns {import("../choose.js").UploadTerms}
 */
export function uploadTerms(offer, manifest) {
  const bytesUp = (/** @type {any} */ form) => {
    const { values, numbers } = layoutOf(asOffered(offer, form).strategy, manifest, new Map(), offer.masks);
    return 4 * values + 8 * numbers + ENVELOPE_BYTES;
  };
  return { alone: offer.masks.alone, bytesUp };
}

/**
 * The kind of a form, and the form, with the class statistics that the offer asks for: a device may send fewer, the
 * layout has room for all. Throws MaskError for a kind whose updates do not add up. @param {any} offer @param {any} form
 */
function asOffered({ kinds }, form) {
  const { settings } = kinds.find((/** @type {any} */ { name }) => name === form.name);
  const kind = make(form.name, settings);
  if (kind.unsummable) throw new MaskError(`cannot be masked: ${kind.unsummable}`);
  return { kind, strategy: withClassStatistics(form, kind.statistics) };
}
