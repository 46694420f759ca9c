/** Why there is no connection: one line that says what, where, and what to do, as broker/wire/diagnosis.py. */

const WRONG_PASSWORD = [4, 5, 134, 135];

/** Who we told the broker that we are. */
export const whoIs = (url) => (url.user === null ? "a client without user name" : `user '${url.user}'`);

/** The broker's no, of MQTT.js: `code` is that of its CONNACK. */
export function refusal(url, { code, message }) {
  const why = WRONG_PASSWORD.includes(code)
    ? `refused ${whoIs(url)}: wrong user name or password`
    : `refused the connection: ${message.replace(/^Connection refused: /, "").toLowerCase()}`;
  return `the broker at ${url.text} ${why}`;
}

/** The access list's no. @param {string[]} topics */
export const unreadable = (url, topics) =>
  `the broker at ${url.text} does not let ${whoIs(url)} read ${topics.join(", ")}: check its access list`;

/** Why nothing that speaks MQTT answered, and what to look at. A browser tells no more of a WebSocket. */
export function unreachable(url, why) {
  const hint = url.path
    ? `check that WebSockets are served at this port, with MQTT under ${url.path}` +
      (url.secure ? ", and that the broker's certificate is trusted here" : "")
    : "start one with `device-runtime broker`, or check host and port";
  return `no broker answers at ${url.text} (${(why || "it closed the connection").toLowerCase()}): ${hint}`;
}

/** Why a connection ended; `rival`: our name, where another client seems to have it too. */
export function ended(why, rival) {
  const words = (why || "connection lost").toLowerCase();
  return rival ? `${words}, again after a short time: is another client called '${rival}'?` : words;
}
