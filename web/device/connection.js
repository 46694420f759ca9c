/** One connection of MQTT.js, from CONNECT to its end. Part of broker/wire/link.py. */

/** The browser build of MQTT.js, for a Link. @returns {Promise<(url: string, options: object) => any>} */
export async function inBrowser() {
  const { connect } = (await import("../vendor/mqtt.js")).default;
  return (url, options) => connect(url, { ...options, forceNativeWebSocket: true });
}

/** Whether this reason code of a CONNACK, of MQTT 3.1.1 or 5, is a refusal. */
const refuses = (code) => (code >= 1 && code <= 5) || (code >= 128 && code < 160);

/**
 * @typedef {object} Said our name, and our last will
 * @property {string} clientId
 * @property {import("./link_options.js").Will | null} will
 * @property {number} keepaliveS
 * @property {number} timeoutS seconds to wait for CONNACK
 */

/**
 * Begins a connection. It calls `on.accepted` at most once, then `on.received` for each message, and in the end either
 * `on.lost` (with the reason in words) or `on.refused` (an error with MQTT's `code`); after `end` it calls nothing.
 * @param {(url: string, options: object) => any} connect of MQTT.js
 * @param {import("./url.js").BrokerUrl} url @param {Said} said
 * @param {{ accepted(): void, received(topic: string, payload: Uint8Array, packet: { retain: boolean, qos: 0 | 1 }): void,
 *   lost(why: string): void, refused(error: { code: number, message: string }): void }} on
 */
export function open(connect, url, settings, on) {
  const client = connect(url.text, optionsOf(url, settings));
  let over = false;
  let isGone = false;
  let why = "";
  const last = (deed) => {
    if (!over) deed();
    over = true;
  };
  client.on("connect", () => over || on.accepted());
  client.on("message", (topic, payload, packet) => {
    const bytes = new Uint8Array(payload.buffer, payload.byteOffset, payload.length); // the payload is a Buffer
    if (!over) on.received(topic, bytes, packet);
  });
  client.on("error", (error) => {
    why = error?.message || String(error);
    if (refuses(error?.code)) last(() => on.refused(error));
  });
  client.on("close", () => last(() => on.lost(why)));
  return {
    /** Whether CONNACK has come, and it has not ended since. */
    get live() {
      return !over && client.connected;
    },
    /** Calls `done` when the broker has answered (in MQTT 5 perhaps with a refusal), or a message of QoS 0 is sent. */
    send({ topic, payload, retain, qos }, done) {
      client.publish(topic, payload, { qos, retain }, (error) => {
        if (!error || refuses(error.code)) done();
      });
    },
    /** Calls `done` with the topics that the broker refuses, if it answers at all. */
    subscribe(topics, done) {
      client.subscribe(topics, { qos: 1 }, (error, _, suback) => {
        const codes = suback?.granted ?? (error ? topics.map(() => 128) : []);
        if (!over) done(topics.filter((_topic, at) => codes[at] >= 128));
      });
    },
    /** `orderly`: wait for acknowledgements and disconnect, so that no last will is sent; otherwise end at once. */
    end({ orderly }) {
      over = true;
      client.end(!orderly, () => (isGone = true));
    },
    /** Whether `end` is complete: if the program ends sooner, the broker sends the last will. */
    get gone() {
      return isGone;
    },
  };
}

function optionsOf(url, { clientId, will, keepaliveS, timeoutS }) {
  return {
    clientId,
    username: url.user ?? undefined,
    password: url.password ?? undefined,
    protocolVersion: url.mqtt5 ? 5 : 4,
    clean: true,
    keepalive: keepaliveS,
    connectTimeout: 1000 * timeoutS,
    reconnectPeriod: 0,
    resubscribe: false,
    queueQoSZero: false,
    timerVariant: "native", // other timers need a Worker from a blob, which our Content-Security-Policy forbids
    browserBufferTimeout: 50,
    will: will ? { topic: will.topic, payload: will.payload, qos: 1, retain: will.retain ?? true } : undefined,
  };
}
