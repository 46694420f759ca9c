/** Verifies the aggregator's offers, and signs what an enrolled device says (Ed25519), as broker/security/signing.py. */
import { concat, equal, hex, utf8, view } from "./bytes.js";
import { MessageError, NotTrusted } from "./errors.js";
import { FromDevice, Offer, Signed, decode, encode } from "./messages.js";

export const KEY_BYTES = 32;
const PURPOSE = utf8("device-runtime offer/1\0");
const SUCCESSION = utf8("device-runtime succession/1\0");
const OF_DEVICE = utf8("device-runtime device/1\0");
/** What stands before the 32 bytes of a private key in PKCS #8. */
const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20);

/** @typedef {(signature: Uint8Array, said: Uint8Array) => Promise<boolean>} Holds whether it is the key's */

/** The key of one aggregator, as a device knows it. */
export class Verifier {
  #holds;

  /** Rejects with NotTrusted when `key` is none, or nothing verifies here. @param {Uint8Array} key */
  static async open(key) {
    if (key.length !== KEY_BYTES) {
      throw new NotTrusted(`the aggregator's key has ${key.length} bytes, expected ${KEY_BYTES}`);
    }
    return new Verifier(key, await holder(key));
  }

  /** @private */
  constructor(key, holds) {
    /** It changes when an offer is signed by a successor that this key, or its successor, has signed. */
    this.key = key;
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
    if (!(await this.#holds(sealed.signature, said)) && !(await this.#isSucceeded(sealed, said))) {
      throw new NotTrusted(
        `offer on ${topic} refused: it is not signed by the aggregator that this device is enrolled with ` +
          `(key ${fingerprint(this.key)})`,
      );
    }
    return { offer: decode(Offer, sealed.offer), issued: sealed.issued };
  }

  /** Whether a key signed it to which a chain leads from ours, each link signed by the one before; then it is ours. */
  async #isSucceeded({ signature, successions }, said) {
    let [key, holds] = [this.key, this.#holds];
    for (const link of successions) {
      if (!equal(link.old, key) || link.new.length !== KEY_BYTES) continue;
      if (!(await holds(link.signature, succession(link)))) continue;
      [key, holds] = [link.new, await holder(link.new)];
    }
    if (key === this.key || !(await holds(signature, said))) return false;
    [this.key, this.#holds] = [key, holds];
    return true;
  }
}

/** What tells whether a signature is this key's. Rejects with NotTrusted. @param {Uint8Array} key */
const holder = async (key) => (await byBrowser(key)) ?? (await byLibrary(key));

/** Null where it has no Ed25519: Chrome before 137, Firefox before 129, Safari before 17. @returns {Promise<Holds | null>} */
async function byBrowser(bytes) {
  const key = await crypto.subtle.importKey("raw", bytes, "Ed25519", false, ["verify"]).catch(() => null);
  return key && ((signature, said) => crypto.subtle.verify("Ed25519", key, signature, said));
}

/** Strictly by RFC 8032, as browsers do. Rejects with NotTrusted. @returns {Promise<Holds>} */
async function byLibrary(bytes) {
  const { verifyAsync } = await library("offers cannot be verified here");
  return (signature, said) => verifyAsync(signature, said, bytes, { zip215: false }).catch(() => false); // no signature at all
}

/** @typedef {(topic: string, payload: Uint8Array) => Promise<Uint8Array>} Seal the payload to publish there, signed */

/** By a device's own key. Rejects with NotTrusted where nothing signs here. @param {Uint8Array} secret @returns {Promise<Seal>} */
export async function sealer(secret) {
  const sign = (await signsByBrowser(secret)) ?? (await signsByLibrary(secret));
  return async (topic, payload) => {
    const signature = await sign(concat([OF_DEVICE, utf8(topic), Uint8Array.of(0), payload]));
    return encode(FromDevice, { signature, message: payload });
  };
}

async function signsByBrowser(secret) {
  const key = await crypto.subtle.importKey("pkcs8", concat([PKCS8, secret]), "Ed25519", false, ["sign"]).catch(() => null);
  return key && (async (said) => new Uint8Array(await crypto.subtle.sign("Ed25519", key, said)));
}

async function signsByLibrary(secret) {
  const { signAsync } = await library("what this device says cannot be signed here");
  return (said) => signAsync(said, secret);
}

/** Of a key, for people: its first 8 bytes. @param {Uint8Array} key */
export const fingerprint = (key) => hex(key.subarray(0, 8));

/** Ed25519 where the browser has none. Rejects with NotTrusted. @param {string} trouble */
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
  return concat([PURPOSE, utf8(topic), Uint8Array.of(0), moment(issued), offer]);
}

const succession = (link) => concat([SUCCESSION, link.old, link.new, moment(link.made)]);

/** @param {number} seconds since 1970 */
function moment(seconds) {
  const written = new Uint8Array(8);
  view(written).setBigUint64(0, BigInt(seconds));
  return written;
}
