/**
 * A word of 8 bytes by which a device knows its aggregator, as broker/wire/session_mac.py: X25519 of a key that each life of
 * the device draws, and of the aggregator's Ed25519 key, mapped; then HMAC-SHA256.
 */
import { concat, littleEndian, toLittleEndian, utf8 } from "./bytes.js";
import { NotTrusted } from "./errors.js";
import { WORD_BYTES } from "./compact_round.js";

const PURPOSE = utf8("device-runtime pact/1\0");
/** Of the field of both curves. */
const P = 2n ** 255n - 19n;
/** What stands before the 32 bytes of a secret half in PKCS #8. */
const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20);
const BASE_POINT = Uint8Array.of(9, ...new Uint8Array(31));
const HMAC = { name: "HMAC", hash: "SHA-256" };

/** What one aggregator and one life of a device have agreed on. */
export class Pact {
  #secret;

  /**
   * `own`: 32 random bytes, the device's secret half; `aggregator`: the other's key of X25519. Rejects with
   * NotTrusted for a key that none can agree by. @param {Uint8Array} own @param {Uint8Array} aggregator
   */
  static async agreed(own, aggregator) {
    const device = await publicOf(own);
    let shared;
    try {
      shared = await multiplied(own, aggregator);
    } catch {
      throw new NotTrusted("the aggregator's key is not valid for key agreement");
    }
    const secret = await hmac(await keyed(shared), concat([PURPOSE, device, aggregator]));
    return new Pact(await keyed(secret));
  }

  /** @private */
  constructor(secret) {
    this.#secret = secret;
  }

  /** That one of both says this there, in this run; "" for what belongs to none. */
  async word(topic, run, payload) {
    const said = concat([utf8(topic), Uint8Array.of(0), utf8(run), Uint8Array.of(0), payload]);
    return (await hmac(this.#secret, said)).subarray(0, WORD_BYTES);
  }

  /** Whether the word is that of this. @param {Uint8Array} word */
  async holds(word, topic, run, payload) {
    const right = await this.word(topic, run, payload);
    let other = word.length ^ WORD_BYTES; // in the same time, wherever they differ
    for (let at = 0; at < WORD_BYTES; at += 1) other |= right[at] ^ (word[at] ?? 0);
    return other === 0;
  }
}

/** The half to say aloud, of a secret one of 32 random bytes. @param {Uint8Array} secret */
export const publicOf = (secret) => multiplied(secret, BASE_POINT);

/** The key of X25519 that goes with one of Ed25519: u = (1 + y) / (1 - y) (RFC 7748, section 4.1). */
export function mapped(ed25519) {
  const y = littleEndian(ed25519) & (2n ** 255n - 1n);
  return toLittleEndian(((1n + y) * inverse((1n - y + P) % P)) % P, 32);
}

/** By Fermat: to the power of P - 2. */
function inverse(number) {
  let [power, made] = [number % P, 1n];
  for (let rest = P - 2n; rest > 0n; rest >>= 1n) {
    if (rest & 1n) made = (made * power) % P;
    power = (power * power) % P;
  }
  return made;
}

/** X25519. Rejects for what gives zero. */
async function multiplied(secret, point) {
  const own = await crypto.subtle.importKey("pkcs8", concat([PKCS8, secret]), "X25519", false, ["deriveBits"]);
  const other = await crypto.subtle.importKey("raw", point, "X25519", false, []);
  return new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: other }, own, 256));
}

const keyed = (secret) => crypto.subtle.importKey("raw", secret, HMAC, false, ["sign"]);
const hmac = async (key, said) => new Uint8Array(await crypto.subtle.sign("HMAC", key, said));
