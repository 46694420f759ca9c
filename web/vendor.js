/**
 * Copies the files of the libraries that browsers load from node_modules to vendor/ (`npm run vendor`). Large files are
 * also compressed by Brotli, to a fifth, because that is how they are sent over a network.
 *
 * onnxruntime-web: `ort.wasm` computes on the CPU, on one thread or several (14 MB of WASM). `ort.webgpu` is
 * another 27 MB, and is loaded only if WebGPU is tried. `ed25519` is loaded if a browser has no Ed25519.
 */
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { brotliCompressSync, constants } from "node:zlib";

const HERE = dirname(fileURLToPath(import.meta.url));
const ORT = "onnxruntime-web/dist";
const MSGPACK = "@msgpack/msgpack/dist.esm";

/** Path in node_modules -> path in vendor/. */
const FILES = {
  [`${ORT}/ort.wasm.min.mjs`]: "ort/ort.wasm.min.mjs",
  [`${ORT}/ort-wasm-simd-threaded.mjs`]: "ort/ort-wasm-simd-threaded.mjs",
  [`${ORT}/ort-wasm-simd-threaded.wasm`]: "ort/ort-wasm-simd-threaded.wasm",
  [`${ORT}/ort.webgpu.min.mjs`]: "ort/ort.webgpu.min.mjs",
  [`${ORT}/ort-wasm-simd-threaded.asyncify.mjs`]: "ort/ort-wasm-simd-threaded.asyncify.mjs",
  [`${ORT}/ort-wasm-simd-threaded.asyncify.wasm`]: "ort/ort-wasm-simd-threaded.asyncify.wasm",
  "mqtt/dist/mqtt.esm.js": "mqtt.js",
  "@noble/ed25519/index.js": "ed25519.mjs",
  "@noble/ed25519/LICENSE": "licenses/ed25519.txt",
  "mqtt/LICENSE.md": "licenses/mqtt.md",
  "@msgpack/msgpack/LICENSE": "licenses/msgpack.txt",
};

/** The modules that Node can import too, which checks them; MQTT.js has a build of its own for Node. */
const IN_NODE = ["ort/ort.wasm.min.mjs", "ort/ort.webgpu.min.mjs", "msgpack/index.mjs", "ed25519.mjs"];

/** The modules of a folder and its subfolders, as in FILES. @returns {Record<string, string>} */
function modules(from, to) {
  const files = {};
  for (const entry of readdirSync(join(HERE, "node_modules", from), { withFileTypes: true })) {
    if (entry.isDirectory()) Object.assign(files, modules(`${from}/${entry.name}`, `${to}/${entry.name}`));
    else if (entry.name.endsWith(".mjs")) files[`${from}/${entry.name}`] = `${to}/${entry.name}`;
  }
  return files;
}

const LARGE = 20_000;
/** Settings of Brotli: 14 MB become 2.9 MB in 2 s; the best quality makes them 2.3 MB, in 2 minutes. */
const PRESSED = { params: { [constants.BROTLI_PARAM_QUALITY]: 5, [constants.BROTLI_PARAM_LGWIN]: 24 } };

/** Checks that every import of a module is relative, and of a file that was copied. */
function checkImports(path, paths) {
  for (const [, target] of readFileSync(path, "utf8").matchAll(/^(?:import|export) .* from "([^"]+)";/gm)) {
    const isVendored = target.startsWith(".") && paths.has(join(dirname(path), target));
    if (!isVendored) throw new Error(`${path} imports ${target}, which is not in vendor/`);
  }
}

const files = { ...FILES, ...modules(MSGPACK, "msgpack") };
const vendor = join(HERE, "vendor");
rmSync(vendor, { recursive: true, force: true });
for (const [from, to] of Object.entries(files)) {
  const target = join(vendor, to);
  mkdirSync(dirname(target), { recursive: true });
  copyFileSync(join(HERE, "node_modules", from), target);
}
const all = new Set(Object.values(files).map((path) => join(vendor, path)));
for (const path of all) {
  if (statSync(path).size === 0) throw new Error(`${path} is empty`);
  if (basename(path).endsWith(".mjs")) checkImports(path, all);
}
for (const path of IN_NODE) await import(pathToFileURL(join(vendor, path)).href);
for (const path of all) {
  if (statSync(path).size > LARGE) writeFileSync(`${path}.br`, brotliCompressSync(readFileSync(path), PRESSED));
}
const bytes = [...all].reduce((sum, path) => sum + statSync(path).size, 0);
console.log(`vendor/: ${all.size} files, ${(bytes / 1e6).toFixed(1)} MB`);
