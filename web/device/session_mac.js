/**
 * Authenticates compact messages with 8 bytes (broker/security/signing.py). Each process of a device draws a key pair,
 * from which both ends derive the same secret (X25519; the aggregator uses its Ed25519 key, by the usual map between
 * the curves). The MAC is HMAC-SHA256.
 */
import { concat, littleEndian, toLittleEndian, utf8 } from "./bytes.js";
import { MAC_BYTES } from "./compact_round.js";
import { NotTrusted } from "./errors.js";
import { hmac, hmacKey, publicKey, sharedSecret } from "./key_agreement.js";

const PURPOSE = utf8("device-runtime pact/1\0");
/** The prime of the field of both curves. */
const P = 2n ** 255n - 19n;

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
      shared = await sharedSecret(own, aggregator);
    } catch {
      throw new NotTrusted("the aggregator's key is not valid for key agreement");
    }
    const secret = await hmac(await hmacKey(shared), concat([PURPOSE, device, aggregator]));
    return new SessionKey(await hmacKey(secret));
  }

  /** @private */
  constructor(secret) {
    this.#secret = secret;
  }

  /** The MAC of a payload on a topic; `run` is "" for a message of no run. */
  async mac(topic, run, payload) {
    const message = concat([utf8(topic), Uint8Array.of(0), utf8(run), Uint8Array.of(0), payload]);
    return (await hmac(this.#secret, message)).subarray(0, MAC_BYTES);
  }

  /** Whether `mac` is the MAC of the payload. @param {Uint8Array} mac */
  async verifies(mac, topic, run, payload) {
    const right = await this.mac(topic, run, payload);
    let other = mac.length ^ MAC_BYTES; // the comparison takes the same time wherever they differ
    for (let at = 0; at < MAC_BYTES; at += 1) other |= right[at] ^ (mac[at] ?? 0);
    return other === 0;
  }
}

/** The X25519 key that belongs to an Ed25519 key: u = (1 + y) / (1 - y) (RFC 7748, section 4.1). */
export function mapped(ed25519) {
  const y = littleEndian(ed25519) & (2n ** 255n - 1n);
  return toLittleEndian(((1n + y) * inverse((1n - y + P) % P)) % P, 32);
}

/** The inverse modulo P, by Fermat: the number to the power of P - 2. */
function inverse(number) {
  let [power, result] = [number % P, 1n];
  for (let rest = P - 2n; rest > 0n; rest >>= 1n) {
    if (rest & 1n) result = (result * power) % P;
    power = (power * power) % P;
  }
  return result;
}
