/** The Node build of MQTT.js, which also connects over TCP and accepts an authority of its own. */
import { connect } from "mqtt";

/**
 * A transport for a Link. `authority`: certificates to trust (PEM); by default those that Node trusts.
 * @param {{ authority?: string }} [options]
 */
export function inNode({ authority } = {}) {
  const tls = authority ? { ca: authority } : {};
  return async () => (url, options) => connect(url, { ...options, ...tls });
}
