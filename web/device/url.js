/** Where a broker is: `wss://user:password@host:8443/mqtt`, or `mqtts://host:8883` where there is no page. */
import { UrlError } from "./errors.js";

/** Scheme -> port, where a URL names none. */
const PORTS = { mqtt: 1883, mqtts: 8883, ws: 80, wss: 443 };
/** Of a WebSocket, where a URL names none. */
const PATH = "/mqtt";
const MALFORMED =
  "not a broker URL: use wss://host:port/path, with user:password@ before the host and " +
  "'/', '#', '?', '@', ':' in a password written as %2F, %23, %3F, %40, %3A";

/** A name or address that is this machine; names are not looked up, only `localhost` is known. */
export const isLoopback = (host) => /^(localhost|127(\.\d{1,3}){3}|\[?::1\]?)$/i.test(host);

/**
 * @typedef {object} BrokerUrl
 * @property {string} text for people and for connecting; never has the password
 * @property {string} host
 * @property {number} port
 * @property {string} path of a WebSocket, else empty
 * @property {boolean} secure
 * @property {string | null} user
 * @property {string | null} password
 * @property {boolean} mqtt5
 */

/**
 * A checked address. Throws UrlError, also for one that would send passwords and updates to another machine in
 * the clear, unless `insecure`.
 * @param {string} written @param {{ insecure?: boolean }} [options] @returns {Readonly<BrokerUrl>}
 */
export function parseUrl(written, { insecure = false } = {}) {
  const { scheme, host, url } = parts(written);
  const secure = scheme === "mqtts" || scheme === "wss";
  const named = /^\w+:\/\/[^/?#]+\//.test(written.trim()); // `URL` has a "/" also where none was written
  const path = scheme.startsWith("ws") ? (named ? url.pathname : PATH) : "";
  const port = url.port === "" ? PORTS[scheme] : Number(url.port);
  const text = `${scheme}://${host}:${port}${path}`;
  if (!secure && !isLoopback(host) && !insecure) {
    const better = path ? "wss" : "mqtts";
    throw new UrlError(`${text} would send passwords and updates over the network in the clear: use ${better}://`);
  }
  return Object.freeze({ text, host, port, path, secure, ...said(url), mqtt5: version(url) === "5" });
}

function parts(written) {
  let url;
  try {
    url = new URL(written.trim());
  } catch {
    throw new UrlError(MALFORMED);
  }
  const scheme = url.protocol.slice(0, -1);
  const plain = scheme.startsWith("ws") || ["", "/"].includes(url.pathname);
  if (!Object.hasOwn(PORTS, scheme) || !url.hostname || !plain || url.hash) throw new UrlError(MALFORMED);
  return { scheme, host: url.hostname, url };
}

/** Who says so, if anybody. */
function said({ username, password }) {
  try {
    const user = username === "" ? null : decodeURIComponent(username);
    return { user, password: password === "" ? null : decodeURIComponent(password) };
  } catch {
    throw new UrlError(MALFORMED);
  }
}

function version({ search }) {
  const asked = search.replace(/^\?/, "");
  if (asked && !["mqtt=3", "mqtt=5"].includes(asked)) {
    throw new UrlError(`broker URL with ?${asked}: only ?mqtt=5 and ?mqtt=3 are known`);
  }
  return asked.slice("mqtt=".length) || "3";
}
