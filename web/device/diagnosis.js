/** Says why there is no connection: one line with what failed, where, and what to do. Part of broker/wire/link.py. */

const WRONG_PASSWORD = [4, 5, 134, 135];

/** The user of a URL, for messages. */
export const userOf = (url) => (url.user === null ? "a client without user name" : `user '${url.user}'`);

/** Why the broker refused a connection; the error is of MQTT.js, and `code` is that of the CONNACK. */
export function refusalReason(url, { code, message }) {
  const why = WRONG_PASSWORD.includes(code)
    ? `refused ${userOf(url)}: wrong user name or password, or revoked`
    : `refused the connection: ${message.replace(/^Connection refused: /, "").toLowerCase()}`;
  return `the broker at ${url.text} ${why}`;
}

/** That the broker's access list refused to let us read these topics. @param {string[]} topics */
export const unreadableReason = (url, topics) =>
  `the broker at ${url.text} does not let ${userOf(url)} read ${topics.join(", ")}: check its access list`;

/** Why no MQTT broker answered, and what to check. A browser tells no more of a WebSocket. */
export function unreachableReason(url, why) {
  const hint = url.path
    ? `check that WebSockets are served at this port, with MQTT under ${url.path}` +
      (url.secure ? ", and that the broker's certificate is trusted here" : "")
    : "start one with `device-runtime broker`, or check host and port";
  return `no broker answers at ${url.text} (${(why || "it closed the connection").toLowerCase()}): ${hint}`;
}

/** Why a connection ended; `rival`: our name, if another client seems to have it too. */
export function disconnectReason(why, rival) {
  const words = (why || "connection lost").toLowerCase();
  return rival ? `${words}, again after a short time: is another client called '${rival}'?` : words;
}
