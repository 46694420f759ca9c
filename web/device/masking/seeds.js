/**
 * Derives mask seeds that a device shares with each mask helper, and the aggregator cannot (strategies/masking/seeds.py).
 * A device draws a key pair (X25519) for each contribution.
 *
 * What a seed is for; a helper opens it for this purpose only. `min_group`: the fewest devices of a sum; `noise_milli`,
 * `clip_milli`: central differential privacy in thousandths. All three as the offer promises. `exponents`: with noise,
 * those of the update's layout, which scale it; else empty. `helpers`: with noise, how many share it; set by `seal`.
 * @typedef {{task: string, run: string, round: number, kind: string, form: string, device: string, min_group: number,
 *   noise_milli: number, clip_milli: number, exponents: [number, number][], helpers?: number}} MaskPurpose
 */
import { concat, toLittleEndian, utf8 } from "../bytes.js";
import { MaskError, oneLine } from "../errors.js";
import { hmac, hmacKey, publicKey, sharedSecret } from "../key_agreement.js";

/** Bytes of a secret or public key, and of a seed. */
export const KEY_BYTES = 32;
const TAG_BYTES = 16;
const SEED = utf8("device-runtime mask seed/1\0");
const TAG = utf8("device-runtime mask tag/1\0");

/**
 * The mask that a device sends with its contribution, and one seed (KEY_BYTES) for each helper. Rejects with MaskError
 * for an invalid key. @param {Uint8Array} secret KEY_BYTES random bytes, used for this contribution only
 * @param {Uint8Array[]} helpers their public keys @param {MaskPurpose} purpose
 * @returns {Promise<{mask: {key: Uint8Array, tags: Uint8Array[]}, seeds: Uint8Array[]}>}
 */
export async function seal(secret, helpers, purpose) {
  const key = await agreed(publicKey(secret));
  const context = encodedPurpose({ ...purpose, helpers: purpose.noise_milli ? helpers.length : 0 });
  const pairs = await Promise.all(
    helpers.map(async (helper) => {
      const shared = await hmacKey(await agreed(sharedSecret(secret, helper)));
      const [seed, tag] = await Promise.all([SEED, TAG].map((what) => hmac(shared, concat([what, key, helper, context]))));
      return { seed, tag: tag.slice(0, TAG_BYTES) };
    }),
  );
  return { mask: { key, tags: pairs.map(({ tag }) => tag) }, seeds: pairs.map(({ seed }) => seed) };
}

/** Rejects with MaskError if this browser has no X25519, in which masks are not possible. */
export async function checkMasksPossible() {
  await publicKey(new Uint8Array(KEY_BYTES).fill(1)).catch(() => {
    throw new MaskError("updates are to be masked, for which this browser lacks X25519: update the browser");
  });
}

/** The purpose as bytes; two purposes never have the same. @param {MaskPurpose} purpose */
export function encodedPurpose({ task, run, kind, form, device, ...numbers }) {
  const texts = [task, run, kind, form, device].map(utf8).flatMap((text) => [bigEndian(text.length, 4), text]);
  const { round, min_group: minGroup, noise_milli: noise, clip_milli: clip, exponents, helpers } = numbers;
  const all = [round, minGroup, noise, clip, ...(helpers ? [helpers] : []), ...exponents.flat()];
  return concat([...texts, ...all.map((number) => bigEndian(number, 8))]);
}

/** @param {number} number negative as two's complement @param {number} size in bytes */
const bigEndian = (number, size) => toLittleEndian(BigInt.asUintN(8 * size, BigInt(number)), size).reverse();

/** The same secret. Rejects with MaskError. @param {Promise<Uint8Array>} secret */
const agreed = (secret) =>
  secret.catch((error) => {
    throw new MaskError(`not a valid key for a mask: ${oneLine(error)}`);
  });
