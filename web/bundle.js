/**
 * Writes the page's modules as one file, and its worker's as another, into vendor/bundled (`npm run bundle`): a phone
 * then asks for 11 files instead of 185. `inputs.json` has the SHA-256 of each of these modules in base64: a server
 * that has other modules sends its own, one by one.
 */
import { createHash } from "node:crypto";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync } from "node:zlib";
import { build } from "esbuild";

const WEB = dirname(fileURLToPath(import.meta.url));
const OUT = join(WEB, "vendor", "bundled");
/** Module -> where vendor/ lies from it. Large libraries stay files of their own: they are loaded later, or not at all. */
const ENTRIES = { "page/main.js": "../vendor/", "worker.js": "./vendor/" };
const LATER = /\/vendor\/((ort|mqtt|ed25519).*)$/;

rmSync(OUT, { recursive: true, force: true });
const inputs = new Set();
for (const [entry, vendor] of Object.entries(ENTRIES)) {
  const outfile = join(OUT, entry);
  const later = ({ path }) => ({ path: vendor + path.match(LATER)[1], external: true });
  const plugin = { name: "later", setup: (bundler) => bundler.onResolve({ filter: LATER }, later) };
  const { metafile } = await build({
    absWorkingDir: WEB,
    entryPoints: [entry],
    outfile,
    bundle: true,
    format: "esm",
    target: "es2022",
    minifyWhitespace: true,
    minifySyntax: true,
    metafile: true,
    plugins: [plugin],
    logLevel: "warning",
  });
  for (const path of Object.keys(metafile.inputs)) inputs.add(path);
  writeFileSync(`${outfile}.br`, brotliCompressSync(readFileSync(outfile)));
}
const hash = (path) => createHash("sha256").update(readFileSync(join(WEB, path))).digest("base64");
const hashes = Object.fromEntries([...inputs].sort().map((path) => [path, hash(path)]));
writeFileSync(join(OUT, "inputs.json"), JSON.stringify(hashes));
console.log(`vendor/bundled/: ${inputs.size} modules in ${Object.keys(ENTRIES).length} files`);
