/** One connection of MQTT.js, from CONNECT to its end. */

/** MQTT.js as a browser loads it, for a Link. @returns {Promise<(url: string, options: object) => any>} */
export async function inBrowser() {
  const { connect } = (await import("../vendor/mqtt.js")).default;
  return (url, options) => connect(url, { ...options, forceNativeWebSocket: true });
}

/** CONNACK's reasons to refuse, of MQTT 3.1.1 and 5. */
const refuses = (code) => (code >= 1 && code <= 5) || (code >= 128 && code < 160);

/**
 * @typedef {object} Said who we are, and what is said of us when we vanish
 * @property {string} clientId
 * @property {import("./link_options.js").Will | null} will
 * @property {number} keepaliveS
 * @property {number} timeoutS for CONNACK
 */

/**
 * Begins a connection. `on` is told of at most one `accepted`, then of `received`s, and of exactly one of `lost`
 * (why, in words) and `refused` (an error with MQTT's `code`); of nothing after `end`.
 * @param {(url: string, options: object) => any} connect of MQTT.js
 * @param {import("./url.js").BrokerUrl} url @param {Said} said
 * @param {{ accepted(): void, received(topic: string, payload: Uint8Array, packet: { retain: boolean, qos: 0 | 1 }): void,
 *   lost(why: string): void, refused(error: { code: number, message: string }): void }} on
 */
export function open(connect, url, said, on) {
  const client = connect(url.text, optionsOf(url, said));
  let over = false;
  let isGone = false;
  let why = "";
  const last = (deed) => {
    if (!over) deed();
    over = true;
  };
  client.on("connect", () => over || on.accepted());
  client.on("message", (topic, payload, packet) => {
    const bytes = new Uint8Array(payload.buffer, payload.byteOffset, payload.length); // of a Buffer
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
    /** `done` is called when the broker has acknowledged it, with MQTT 5 perhaps to say no; or it is gone. */
    send({ topic, payload, retain, qos }, done) {
      client.publish(topic, payload, { qos, retain }, (error) => {
        if (!error || refuses(error.code)) done();
      });
    },
    /** `done` is told which of these the broker refuses, if it answers at all. */
    subscribe(topics, done) {
      client.subscribe(topics, { qos: 1 }, (error, _, suback) => {
        const codes = suback?.granted ?? (error ? topics.map(() => 128) : []);
        if (!over) done(topics.filter((_topic, at) => codes[at] >= 128));
      });
    },
    /** In order, without a last will, where nothing is left to be acknowledged; else at once. */
    end({ orderly }) {
      over = true;
      client.end(!orderly, () => (isGone = true));
    },
    /** Whether `end` is through: who ends sooner has a last will. */
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
    timerVariant: "native", // else a Worker from a blob, which our Content-Security-Policy does not have
    browserBufferTimeout: 50,
    will: will ? { topic: will.topic, payload: will.payload, qos: 1, retain: will.retain ?? true } : undefined,
  };
}
