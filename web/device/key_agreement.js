/** Derives secrets that two parties share: X25519 and HMAC-SHA256, by WebCrypto. Rejects where a browser lacks X25519. */
import { concat } from "./bytes.js";

/** The bytes before the 32 bytes of a secret key in PKCS #8. */
const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20);
const BASE_POINT = Uint8Array.of(9, ...new Uint8Array(31));
const HMAC = { name: "HMAC", hash: "SHA-256" };

/** The public key of a secret key, which is 32 random bytes. @param {Uint8Array} secret */
export const publicKey = (secret) => sharedSecret(secret, BASE_POINT);

/**
 * The secret (32 bytes) that the owners of both keys share (RFC 7748). Rejects if it is zero, as for an invalid key.
 * @param {Uint8Array} secret @param {Uint8Array} other the other's public key
 */
export async function sharedSecret(secret, other) {
  const own = await crypto.subtle.importKey("pkcs8", concat([PKCS8, secret]), "X25519", false, ["deriveBits"]);
  const point = await crypto.subtle.importKey("raw", /** @type {any} */ (other), "X25519", false, []);
  return new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: point }, own, 256));
}

/** @param {Uint8Array} secret */
export const hmacKey = (secret) => crypto.subtle.importKey("raw", /** @type {any} */ (secret), HMAC, false, ["sign"]);

/** The HMAC of some bytes, 32 bytes. @param {CryptoKey} key @param {Uint8Array} said */
export const hmac = async (key, message) =>
  new Uint8Array(await crypto.subtle.sign("HMAC", key, /** @type {any} */ (message)));
