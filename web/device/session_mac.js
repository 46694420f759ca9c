/**
 * Authenticates compact messages with 8 bytes (broker/wire/session_mac.py). Each process of a device draws a key pair,
 * from which both ends derive the same secret (X25519; the aggregator uses its Ed25519 key, by the usual map between
 * the curves). The MAC is HMAC-SHA256.
 */
import { concat, littleEndian, toLittleEndian, utf8 } from "./bytes.js";
import { MAC_BYTES } from "./compact_round.js";
import { NotTrusted } from "./errors.js";

const PURPOSE = utf8("device-runtime pact/1\0");
/** The prime of the field of both curves. */
const P = 2n ** 255n - 19n;
/** The bytes before the 32 bytes of a secret key in PKCS #8. */
const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20);
const BASE_POINT = Uint8Array.of(9, ...new Uint8Array(31));
const HMAC = { name: "HMAC", hash: "SHA-256" };

/** The secret that an aggregator shares with one process of a device. */
export class SessionKey {
  #secret;

  /**
   * The shared secret at a device, from its own secret key (32 random bytes) and the aggregator's public key (X25519).
   * Rejects with NotTrusted for an invalid key. @param {Uint8Array} own @param {Uint8Array} aggregator
   */
  static async agreed(own, aggregator) {
    const device = await publicKey(own);
    let shared;
    try {
      shared = await multiplied(own, aggregator);
    } catch {
      throw new NotTrusted("the aggregator's key is not valid for key agreement");
    }
    const secret = await hmac(await keyed(shared), concat([PURPOSE, device, aggregator]));
    return new SessionKey(await keyed(secret));
  }

  /** @private */
  constructor(secret) {
    this.#secret = secret;
  }

  /** The MAC of a payload on a topic; `run` is "" for a message of no run. */
  async mac(topic, run, payload) {
    const said = concat([utf8(topic), Uint8Array.of(0), utf8(run), Uint8Array.of(0), payload]);
    return (await hmac(this.#secret, said)).subarray(0, MAC_BYTES);
  }

  /** Whether `mac` is the MAC of the payload. @param {Uint8Array} mac */
  async verifies(mac, topic, run, payload) {
    const right = await this.mac(topic, run, payload);
    let other = mac.length ^ MAC_BYTES; // the comparison takes the same time wherever they differ
    for (let at = 0; at < MAC_BYTES; at += 1) other |= right[at] ^ (mac[at] ?? 0);
    return other === 0;
  }
}

/** The public key of a secret key, which is 32 random bytes. @param {Uint8Array} secret */
export const publicKey = (secret) => multiplied(secret, BASE_POINT);

/** The X25519 key that belongs to an Ed25519 key: u = (1 + y) / (1 - y) (RFC 7748, section 4.1). */
export function mapped(ed25519) {
  const y = littleEndian(ed25519) & (2n ** 255n - 1n);
  return toLittleEndian(((1n + y) * inverse((1n - y + P) % P)) % P, 32);
}

/** The inverse modulo P, by Fermat: the number to the power of P - 2. */
function inverse(number) {
  let [power, made] = [number % P, 1n];
  for (let rest = P - 2n; rest > 0n; rest >>= 1n) {
    if (rest & 1n) made = (made * power) % P;
    power = (power * power) % P;
  }
  return made;
}

/** X25519. Rejects if the result is zero. */
async function multiplied(secret, point) {
  const own = await crypto.subtle.importKey("pkcs8", concat([PKCS8, secret]), "X25519", false, ["deriveBits"]);
  const other = await crypto.subtle.importKey("raw", point, "X25519", false, []);
  return new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: other }, own, 256));
}

const keyed = (secret) => crypto.subtle.importKey("raw", secret, HMAC, false, ["sign"]);
const hmac = async (key, said) => new Uint8Array(await crypto.subtle.sign("HMAC", key, said));
