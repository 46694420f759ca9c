/** What a packet weighs on the wire. */
import { utf8 } from "./bytes.js";

/** Bytes of one PUBLISH packet of MQTT 3.1.1 with QoS 1: fixed header, topic, packet id, payload. */
export function packetBytes(topic, payload) {
  const rest = 2 + utf8(topic).length + 2 + payload.length;
  let header = 2;
  while (rest >= 128 ** (header - 1)) header += 1;
  return header + rest;
}
