/**
 * Packs the npm package of the device: `npm run package -- FOLDER` copies what it consists of to FOLDER/package, and
 * leaves FOLDER/device-runtime-web-VERSION.tgz. It needs vendor/ and node_modules/ (`npm ci && npm run vendor`).
 */
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const WEB = dirname(dirname(fileURLToPath(import.meta.url)));
const OUT = resolve(process.argv[2] ?? join(WEB, "..", "dist"));
const TO = join(OUT, "package");
const PARTS = ["device", "vendor", "npm", "node/disk_files.js", "node/host.js", "node/transport.js", "page/disk_indexeddb.js"];
/** Of vendor/: copies for servers that send them compressed, the page, and the build for WebGPU, which `join` does not try. */
const LEFT_OUT = /\.br$|asyncify|webgpu|\.whole$|bundled/;

const json = (path) => JSON.parse(readFileSync(path, "utf8"));

/** The folders of a package and of all that it needs, as Node finds them from `folder`. */
function closure(name, packages, folder = "", folders = new Set()) {
  const place = [folder, ...above(folder)].map((at) => `${at}node_modules/${name}`).find((path) => packages[path]);
  if (!place) throw new Error(`${name}, which ${folder || "the package"} needs, is not in package-lock.json`);
  if (folders.has(place)) return folders;
  folders.add(place);
  for (const needed of Object.keys(packages[place].dependencies ?? {})) closure(needed, packages, `${place}/`, folders);
  return folders;
}

/** The folders around a package's folder, the nearest first; "" is the root. */
function above(folder) {
  const parts = folder.split("node_modules/").slice(0, -1);
  return parts.map((_, i) => parts.slice(0, parts.length - i).join("node_modules/"));
}

rmSync(TO, { recursive: true, force: true });
mkdirSync(TO, { recursive: true });
for (const part of PARTS) {
  cpSync(join(WEB, part), join(TO, part), { recursive: true, filter: (path) => !LEFT_OUT.test(path) });
}
for (const file of ["package.json", "README.md", "pack.js"]) rmSync(join(TO, "npm", file));
const { packages } = json(join(WEB, "package-lock.json"));
const { version } = packages["node_modules/mqtt"];
const manifest = { ...json(join(WEB, "npm", "package.json")), dependencies: { mqtt: version } };
writeFileSync(join(TO, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
cpSync(join(WEB, "npm", "README.md"), join(TO, "README.md"));
cpSync(join(WEB, "..", "LICENSE"), join(TO, "LICENSE"));
for (const folder of closure("mqtt", packages)) cpSync(join(WEB, folder), join(TO, folder), { recursive: true });
const packed = execFileSync("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", OUT], { cwd: TO });
const [{ filename, size, unpackedSize }] = JSON.parse(packed.toString());
console.log(`${join(OUT, filename)}: ${(size / 1e6).toFixed(1)} MB, ${(unpackedSize / 1e6).toFixed(1)} unpacked`);
