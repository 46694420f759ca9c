/** Verifies round offers, and signs the messages of enrolled devices (Ed25519; broker/security/signing.py). */
import { concat, equal, hex, utf8, view } from "./bytes.js";
import { MessageError, NotTrusted } from "./errors.js";
import { FromDevice, Offer, Signed, decode, encode } from "./messages.js";

export const KEY_BYTES = 32;
const OFFER_PURPOSE = utf8("device-runtime offer/1\0");
const SUCCESSION_PURPOSE = utf8("device-runtime succession/1\0");
const DEVICE_PURPOSE = utf8("device-runtime device/1\0");
/** The bytes before the 32 bytes of a private key in PKCS #8. */
const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20);

/** @typedef {(signature: Uint8Array, said: Uint8Array) => Promise<boolean>} Holds whether the signature is the key's */

/** The key of one aggregator, as a device knows it. */
export class Verifier {
  #holds;

  /** Rejects with NotTrusted when `key` is no key, or nothing here can verify. @param {Uint8Array} key */
  static async open(key) {
    if (key.length !== KEY_BYTES) {
      throw new NotTrusted(`the aggregator's key has ${key.length} bytes, expected ${KEY_BYTES}`);
    }
    return new Verifier(key, await holder(key));
  }

  /** @private */
  constructor(key, holds) {
    /** Changes when an offer is signed by a successor of this key; each key has signed the next one. */
    this.key = key;
    this.#holds = holds;
  }

  /**
   * The offer in a payload that came on this topic, and when it was issued; both verified. Rejects with NotTrusted for
   * one that is unsigned or another's, MessageError for a payload that is no offer at all.
   * @param {string} topic @param {Uint8Array} payload @returns {Promise<{ offer: any, issued: number }>}
   */
  async open(topic, payload) {
    const sealed = sealedIn(topic, payload);
    const message = signed(topic, sealed);
    if (!(await this.#holds(sealed.signature, message)) && !(await this.#isSucceeded(sealed, message))) {
      throw new NotTrusted(
        `offer on ${topic} refused: it is not signed by the aggregator that this device is enrolled with ` +
          `(key ${fingerprint(this.key)})`,
      );
    }
    return { offer: decode(Offer, sealed.offer), issued: sealed.issued };
  }

  /** Whether a successor of our key signed it: each key has signed the next one. If so, take that key as ours. */
  async #isSucceeded({ signature, successions }, message) {
    let [key, holds] = [this.key, this.#holds];
    for (const link of successions) {
      if (!equal(link.old, key) || link.new.length !== KEY_BYTES) continue;
      if (!(await holds(link.signature, succession(link)))) continue;
      [key, holds] = [link.new, await holder(link.new)];
    }
    if (key === this.key || !(await holds(signature, message))) return false;
    [this.key, this.#holds] = [key, holds];
    return true;
  }
}

/** A function that verifies signatures of this key. Rejects with NotTrusted. @param {Uint8Array} key */
const holder = async (key) => (await byBrowser(key)) ?? (await byLibrary(key));

/** Null without Ed25519: Chrome before 137, Firefox before 129, Safari before 17. @returns {Promise<Holds | null>} */
async function byBrowser(bytes) {
  const key = await crypto.subtle.importKey("raw", bytes, "Ed25519", false, ["verify"]).catch(() => null);
  return key && ((signature, message) => crypto.subtle.verify("Ed25519", key, signature, message));
}

/** Verifies strictly by RFC 8032, as browsers do. Rejects with NotTrusted. @returns {Promise<Holds>} */
async function byLibrary(bytes) {
  const { verifyAsync } = await library("offers cannot be verified here");
  return (signature, message) => verifyAsync(signature, message, bytes, { zip215: false }).catch(() => false); // malformed
}

/** @typedef {(topic: string, payload: Uint8Array) => Promise<Uint8Array>} Seal signs a message for a topic */

/**
 * A function that signs with a device's own key. Rejects with NotTrusted if nothing here can sign.
 * @param {Uint8Array} secret @returns {Promise<Seal>}
 */
export async function sealer(secret) {
  const sign = (await signsByBrowser(secret)) ?? (await signsByLibrary(secret));
  return async (topic, payload) => {
    const signature = await sign(concat([DEVICE_PURPOSE, utf8(topic), Uint8Array.of(0), payload]));
    return encode(FromDevice, { signature, message: payload });
  };
}

async function signsByBrowser(secret) {
  const key = await crypto.subtle.importKey("pkcs8", concat([PKCS8, secret]), "Ed25519", false, ["sign"]).catch(() => null);
  return key && (async (message) => new Uint8Array(await crypto.subtle.sign("Ed25519", key, message)));
}

async function signsByLibrary(secret) {
  const { signAsync } = await library("what this device says cannot be signed here");
  return (message) => signAsync(message, secret);
}

/** The first 8 bytes of a key in hex digits, for people. @param {Uint8Array} key */
export const fingerprint = (key) => hex(key.subarray(0, 8));

/** The Ed25519 library, for browsers without it. Rejects with NotTrusted. @param {string} trouble */
function library(trouble) {
  return import("../vendor/ed25519.mjs").catch((error) => {
    throw new NotTrusted(`${trouble}: this browser has no Ed25519, and none could be loaded (${error})`);
  });
}

function sealedIn(topic, payload) {
  try {
    return decode(Signed, payload);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    throw new NotTrusted(`offer on ${topic} refused: it is not signed (${error.message})`);
  }
}

function signed(topic, { issued, offer }) {
  return concat([OFFER_PURPOSE, utf8(topic), Uint8Array.of(0), moment(issued), offer]);
}

const succession = (link) => concat([SUCCESSION_PURPOSE, link.old, link.new, moment(link.made)]);

/** @param {number} seconds since 1970 */
function moment(seconds) {
  const written = new Uint8Array(8);
  view(written).setBigUint64(0, BigInt(seconds));
  return written;
}
