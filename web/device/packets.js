/** The QoS and size of MQTT packets. Part of broker/wire/link_events.py. */
import { utf8 } from "./bytes.js";
import { COMPACT_TOPICS, isOffer } from "./topics.js";

/** Whether a payload on an offer topic is a compact offer (see compact_round.js), not a MessagePack array. */
export const isCompactOffer = (payload) => payload.length > 0 && payload[0] < 0x80;

/**
 * The QoS of a message: 0 for a compact one, 1 for all others. A receiver must notice by itself that it missed a
 * compact message: a PUBACK of the broker does not say that the receiver has it.
 */
export function qosOf(topic, payload) {
  const compact = isOffer(topic) && isCompactOffer(payload);
  return compact || COMPACT_TOPICS.some((end) => topic.endsWith(end)) ? 0 : 1;
}

/** Bytes of one PUBLISH packet without properties: fixed header, topic, packet id, payload. */
export function packetBytes(topic, payload, qos = qosOf(topic, payload), mqtt5 = false) {
  const rest = 2 + utf8(topic).length + (qos ? 2 : 0) + (mqtt5 ? 1 : 0) + payload.length;
  let header = 2;
  while (rest >= 128 ** (header - 1)) header += 1;
  return header + rest;
}
