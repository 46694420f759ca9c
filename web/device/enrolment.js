/**
 * A device's enrolment: the broker's address, the device's name and password there, and keys
 * (broker/security/enrolment.py).
 */
import { equal, fromBase64Url, hex, sha256, utf8 } from "./bytes.js";
import { DeviceError, EnrolmentError } from "./errors.js";
import { bytes, int, str, struct } from "./fields.js";
import { unpacked } from "./messages.js";
import { KEY_BYTES } from "./signing.js";
import { checkDevice } from "./topics.js";
import { parseUrl } from "./url.js";

/** The start of a token, which names its format. */
export const PREFIX = "fl1.";
/** Characters. A longer token is not read. */
const TOKEN_LIMIT = 16 * 1024;
const CHECK_BYTES = 4;

const Enrolment = struct([
  ["url", str()],
  ["name", str()],
  ["password", str()],
  ["authority", bytes()],
  ["key", bytes()],
  ["issued", int()],
  ["secret", bytes(), new Uint8Array()],
]);

/**
 * @typedef {{ name: string, clientId: string, url: import("./url.js").BrokerUrl, key: Uint8Array, authority: string,
 *   issued: number, secret: Uint8Array }} Enrolled
 *   `url` has the user and the password; others cannot guess `clientId`; `key` is the aggregator's public key;
 *   `authority` is the certificate of the broker's authority (PEM); `issued` in seconds since 1970; `secret` is the
 *   device's own key, which signs its messages; it is empty in tokens of earlier versions.
 */

/**
 * Reads a token. Rejects with EnrolmentError, whose text has no part of the token.
 * @param {string} token @returns {Promise<Enrolled>}
 */
export async function enrolmentOf(token) {
  const word = token.trim();
  if (!word.startsWith(PREFIX) || word.length > TOKEN_LIMIT) {
    throw new EnrolmentError(`not a token of an enrolment: it begins with '${PREFIX}', paste it whole`);
  }
  const data = await checked(word.slice(PREFIX.length));
  try {
    return await enrolled(unpacked(Enrolment, data, "Enrolment"));
  } catch (error) {
    if (!(error instanceof DeviceError)) throw error;
    throw new EnrolmentError(`the token of the enrolment cannot be used: ${error.message}`);
  }
}

/** The bytes of a token, without the checksum at their end. Rejects with EnrolmentError if that is wrong. */
async function checked(word) {
  let data = new Uint8Array();
  try {
    data = fromBase64Url(word);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  const content = data.slice(0, -CHECK_BYTES);
  if (data.length <= CHECK_BYTES || !equal((await sha256(content)).subarray(0, CHECK_BYTES), data.slice(-CHECK_BYTES))) {
    throw new EnrolmentError("the token of the enrolment is cut or mistyped: paste it whole");
  }
  return content;
}

async function enrolled({ url, name, password, authority, key, issued, secret }) {
  checkDevice(name);
  if (key.length !== KEY_BYTES) {
    throw new EnrolmentError(`the aggregator's key has ${key.length} bytes, expected ${KEY_BYTES}`);
  }
  if (secret.length !== 0 && secret.length !== KEY_BYTES) {
    throw new EnrolmentError(`the device's own key has ${secret.length} bytes, expected ${KEY_BYTES}`);
  }
  const broker = parseUrl(url);
  if (!broker.secure) throw new EnrolmentError(`${broker.text} is not encrypted: expected mqtts:// or wss://`);
  const clientId = `${name}-${hex(await sha256(utf8(password))).slice(0, 8)}`;
  const address = Object.freeze({ ...broker, user: name, password });
  return Object.freeze({ name, clientId, url: address, key, authority: pem(authority), issued, secret });
}

/** A certificate in PEM. @param {Uint8Array} der */
function pem(der) {
  const letters = btoa(String.fromCharCode(...der));
  const lines = letters.match(/.{1,64}/g) ?? [];
  return ["-----BEGIN CERTIFICATE-----", ...lines, "-----END CERTIFICATE-----", ""].join("\n");
}
