/** The package in Node: samples and all that waits to be sent are files of a folder; the broker is also at mqtts://. */

import { FileDisk } from "../node/disk_files.js";
import { nodeHost } from "../node/host.js";
import { inNode } from "../node/transport.js";
import { TaskDevice } from "./join.js";

export { TaskDevice };

/** @param {import("./index.js").JoinOptions} options */
export function join(options) {
  return TaskDevice.join(options, async (name, authority) => ({
    disk: new FileDisk(options.state ?? "device-runtime-web"),
    host: nodeHost(name),
    transport: inNode({ authority }),
  }));
}
