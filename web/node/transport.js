/** MQTT.js as Node has it: over TCP as well, and with certificates of one's own. */
import { connect } from "mqtt";

/**
 * For a Link. `authority`: certificates to trust, PEM; else those that Node knows.
 * @param {{ authority?: string }} [options]
 */
export function inNode({ authority } = {}) {
  const tls = authority ? { ca: authority } : {};
  return async () => (url, options) => connect(url, { ...options, ...tls });
}
