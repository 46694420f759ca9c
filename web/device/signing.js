/** Who may offer rounds: the aggregator signs each offer (Ed25519), and a device verifies it. */
import { concat, hex, utf8, view } from "./bytes.js";
import { MessageError, NotTrusted } from "./errors.js";
import { Offer, Signed, decode } from "./messages.js";

export const KEY_BYTES = 32;
const PURPOSE = utf8("device-runtime offer/1\0");

/** @typedef {(signature: Uint8Array, said: Uint8Array) => Promise<boolean>} Holds whether it is the key's */

/** The key of one aggregator, as a device knows it. */
export class Verifier {
  #holds;

  /** Rejects with NotTrusted when `key` is none, or nothing verifies here. @param {Uint8Array} key */
  static async open(key) {
    if (key.length !== KEY_BYTES) {
      throw new NotTrusted(`the aggregator's key has ${key.length} bytes, expected ${KEY_BYTES}`);
    }
    return new Verifier(key, (await byBrowser(key)) ?? (await byLibrary(key)));
  }

  /** @private */
  constructor(key, holds) {
    this.name = fingerprint(key);
    this.#holds = holds;
  }

  /**
   * The offer in a payload that came on this topic, and when it was issued. Rejects with NotTrusted for one that is
   * unsigned or another's, MessageError for what is no offer at all.
   * @param {string} topic @param {Uint8Array} payload @returns {Promise<{ offer: any, issued: number }>}
   */
  async open(topic, payload) {
    const sealed = sealedIn(topic, payload);
    const said = signed(topic, sealed);
    if (!(await this.#holds(sealed.signature, said))) {
      throw new NotTrusted(
        `offer on ${topic} refused: it is not signed by the aggregator that this device is enrolled with ` +
          `(key ${this.name})`,
      );
    }
    return { offer: decode(Offer, sealed.offer), issued: sealed.issued };
  }
}

/** Null where it has no Ed25519: Chrome before 137, Firefox before 129, Safari before 17. @returns {Promise<Holds | null>} */
async function byBrowser(bytes) {
  const key = await crypto.subtle.importKey("raw", bytes, "Ed25519", false, ["verify"]).catch(() => null);
  return key && ((signature, said) => crypto.subtle.verify("Ed25519", key, signature, said));
}

/** Strictly by RFC 8032, as browsers do. Rejects with NotTrusted. @returns {Promise<Holds>} */
async function byLibrary(bytes) {
  const { verifyAsync } = await import("../vendor/ed25519.mjs").catch((error) => {
    throw new NotTrusted(`offers cannot be verified here: this browser has no Ed25519, and none could be loaded (${error})`);
  });
  return (signature, said) => verifyAsync(signature, said, bytes, { zip215: false }).catch(() => false); // no signature at all
}

/** Of a key, for people: its first 8 bytes. @param {Uint8Array} key */
export const fingerprint = (key) => hex(key.subarray(0, 8));

function sealedIn(topic, payload) {
  try {
    return decode(Signed, payload);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    throw new NotTrusted(`offer on ${topic} refused: it is not signed (${error.message})`);
  }
}

function signed(topic, { issued, offer }) {
  const moment = new Uint8Array(8);
  view(moment).setBigUint64(0, BigInt(issued));
  return concat([PURPOSE, utf8(topic), Uint8Array.of(0), moment, offer]);
}
