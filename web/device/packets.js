/** What a packet weighs on the wire, and whether it is to be acknowledged. */
import { utf8 } from "./bytes.js";
import { IN_FEW_BYTES, isOffer } from "./topics.js";

/** Whether a payload on a topic of offers is a next round in few bytes (see compact_round.js): no MessagePack array. */
export const isNext = (payload) => payload.length > 0 && payload[0] < 0x80;

/**
 * 0 for what is said in few bytes: who misses it finds out, and nothing that a broker acknowledges spares it
 * that. 1 for all else.
 */
export function qosOf(topic, payload) {
  const few = isOffer(topic) && isNext(payload);
  return few || IN_FEW_BYTES.some((end) => topic.endsWith(end)) ? 0 : 1;
}

/** Bytes of one PUBLISH packet without properties: fixed header, topic, packet id, payload. */
export function packetBytes(topic, payload, qos = qosOf(topic, payload), mqtt5 = false) {
  const rest = 2 + utf8(topic).length + (qos ? 2 : 0) + (mqtt5 ? 1 : 0) + payload.length;
  let header = 2;
  while (rest >= 128 ** (header - 1)) header += 1;
  return header + rest;
}
