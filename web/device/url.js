/** Broker URLs: `wss://user:password@host:8443/mqtt`, or `mqtts://host:8883` outside a browser (broker/wire/url.py). */
import { UrlError } from "./errors.js";

/** Scheme -> port, for a URL that names none. */
const PORTS = { mqtt: 1883, mqtts: 8883, ws: 80, wss: 443 };
/** The path of a WebSocket, for a URL that names none. */
const PATH = "/mqtt";
const MALFORMED =
  "not a broker URL: use wss://host:port/path, with user:password@ before the host and " +
  "'/', '#', '?', '@', ':' in a password written as %2F, %23, %3F, %40, %3A";

/** Whether a name or address is this machine; of names, only `localhost` is, none is looked up. */
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
 * Reads and checks a URL. Throws UrlError, also for plain `mqtt://` or `ws://` to another machine, unless `insecure`.
 * @param {string} written @param {{ insecure?: boolean }} [options] @returns {Readonly<BrokerUrl>}
 */
export function parseUrl(written, { insecure = false } = {}) {
  const { scheme, host, url } = parts(written);
  const secure = scheme === "mqtts" || scheme === "wss";
  const named = /^\w+:\/\/[^/?#]+\//.test(written.trim()); // `URL` adds a "/" if there is none
  const path = scheme.startsWith("ws") ? (named ? url.pathname : PATH) : "";
  const port = url.port === "" ? PORTS[scheme] : Number(url.port);
  const text = `${scheme}://${host}:${port}${path}`;
  if (!secure && !isLoopback(host) && !insecure) {
    const better = path ? "wss" : "mqtts";
    throw new UrlError(`${text} would send passwords and updates over the network in the clear: use ${better}://`);
  }
  return Object.freeze({ text, host, port, path, secure, ...account(url), mqtt5: version(url) === "5" });
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

/** The user and the password, if given. */
function account({ username, password }) {
  try {
    const user = username === "" ? null : decodeURIComponent(username);
    return { user, password: password === "" ? null : decodeURIComponent(password) };
  } catch {
    throw new UrlError(MALFORMED);
  }
}

function version({ search }) {
  const query = search.replace(/^\?/, "");
  if (query && !["mqtt=3", "mqtt=5"].includes(query)) {
    throw new UrlError(`broker URL with ?${query}: only ?mqtt=5 and ?mqtt=3 are known`);
  }
  return query.slice("mqtt=".length) || "3";
}
