/** Whose a disk is. */
import { text, utf8 } from "./bytes.js";
import { Outbox } from "./outbox.js";

const KEY = "owner";

/**
 * From now on this device's. What another name has no receipts for may have been counted, and would be again under
 * this one: it is not sent, and its last round not worked on again. Rejects with DiskError.
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
