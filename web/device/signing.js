/** Who may offer rounds: the aggregator signs each offer (Ed25519), and a device verifies it. */
import { concat, hex, utf8, view } from "./bytes.js";
import { MessageError, NotTrusted } from "./errors.js";
import { Offer, Signed, decode } from "./messages.js";

export const KEY_BYTES = 32;
const PURPOSE = utf8("device-runtime offer/1\0");

/** The key of one aggregator, as a device knows it. */
export class Verifier {
  #key;

  /** Rejects with NotTrusted when `key` is none, or this browser cannot verify. @param {Uint8Array} key */
  static async open(key) {
    if (key.length !== KEY_BYTES) {
      throw new NotTrusted(`the aggregator's key has ${key.length} bytes, expected ${KEY_BYTES}`);
    }
    try {
      return new Verifier(key, await crypto.subtle.importKey("raw", /** @type {any} */ (key), "Ed25519", false, ["verify"]));
    } catch (error) {
      throw new NotTrusted(`offers cannot be verified here: Ed25519 is missing, update this browser (${error})`);
    }
  }

  /** @private */
  constructor(bytes, key) {
    this.name = fingerprint(bytes);
    this.#key = key;
  }

  /**
   * The offer in a payload that came on this topic, and when it was issued. Rejects with NotTrusted for one that is
   * unsigned or another's, MessageError for what is no offer at all.
   * @param {string} topic @param {Uint8Array} payload @returns {Promise<{ offer: any, issued: number }>}
   */
  async open(topic, payload) {
    const sealed = sealedIn(topic, payload);
    const said = signed(topic, sealed);
    if (!(await crypto.subtle.verify("Ed25519", this.#key, sealed.signature, said))) {
      throw new NotTrusted(
        `offer on ${topic} refused: it is not signed by the aggregator that this device is enrolled with ` +
          `(key ${this.name})`,
      );
    }
    return { offer: decode(Offer, sealed.offer), issued: sealed.issued };
  }
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
