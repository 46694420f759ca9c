/** Keeps the name of the device that a disk belongs to. */
import { text, utf8 } from "./bytes.js";
import { Outbox } from "./outbox.js";

const KEY = "owner";

/**
 * Make the disk this device's. Contributions without a receipt that were made under another name are not sent, because
 * they may have been counted, and would count again under this name; nor is their last round worked on again. Rejects
 * with DiskError.
 * @param {import("./disk.js").Disk} disk @param {string} name @param {(level: string, line: string) => void} log
 */
export async function own(disk, name, log) {
  const before = await disk.get(KEY);
  if (before && text(before) !== name) {
    const outbox = await Outbox.open(disk, log);
    for (const message of [...outbox]) {
      log("info", `round ${message.round}: ${message.kind} was made as ${text(before)}, and is not sent`);
      await outbox.end(message);
    }
  }
  await disk.put(KEY, utf8(name));
}
