/** The bundle that comes with the package, packed as by Python. */
import { readFileSync, readdirSync } from "node:fs";
import { crc32 } from "node:zlib";

import { concat, toLittleEndian, utf8 } from "../device/bytes.js";

const number = (value, size) => toLittleEndian(BigInt(value), size);

/** A sorted zip without compression and dates. @param {Map<string, Uint8Array>} files @returns {Uint8Array} */
export function packed(files) {
  const [locals, entries] = [[], []];
  let at = 0;
  for (const [name, content] of [...files].sort(([left], [other]) => (left < other ? -1 : 1))) {
    const [size, crc] = [number(content.length, 4), number(crc32(content), 4)];
    const middle = concat([
      number(0, 4),
      number(0, 2),
      number(33, 2),
      crc,
      size,
      size,
      number(name.length, 2),
      number(0, 2),
    ]);
    locals.push(concat([number(0x04034b50, 4), number(20, 2), middle, utf8(name), content]));
    const end = concat([number(0, 6), number(0o644 * 65536, 4), number(at, 4)]);
    entries.push(concat([number(0x02014b50, 4), number(0x0314, 2), number(20, 2), middle, end, utf8(name)]));
    at += locals.at(-1).length;
  }
  const directory = concat(entries);
  const counts = [number(files.size, 2), number(files.size, 2), number(directory.length, 4), number(at, 4)];
  return concat([...locals, directory, number(0x06054b50, 4), number(0, 4), ...counts, number(0, 2)]);
}

/** The files of a bundle by name, without its narrower parts. @param {string} name @returns {Map<string, Uint8Array>} */
export function files(name) {
  const folder = new URL(`../../models/bundles/${name}/`, import.meta.url);
  const entries = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile());
  return new Map(
    entries.map(({ name: file }) => [file, new Uint8Array(readFileSync(new URL(file, folder)))]),
  );
}
