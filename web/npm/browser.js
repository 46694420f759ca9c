/** The package in a browser: samples and all that waits to be sent are in IndexedDB, the broker is at wss:// or ws://. */

import { browserHost } from "../device/host.js";
import { inBrowser } from "../device/connection.js";
import { openDisk } from "../page/disk_indexeddb.js";
import { TaskDevice } from "./join.js";

export { TaskDevice };

/** @param {import("./index.js").JoinOptions} options */
export function join(options) {
  return TaskDevice.join(options, async (name) => ({
    disk: await openDisk(options.state ?? "device-runtime-web"),
    host: browserHost(name, navigator, () => null),
    transport: inBrowser,
  }));
}
