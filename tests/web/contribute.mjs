/**
 * One contribution, made by the browser's modules: `node contribute.mjs BUNDLE.zip WORK.json DATA.safetensors`.
 *
 * WORK.json has kind, settings, seed (text) and device; the data x float32 (n, *input), y int32 (n,), and what is
 * sent aside under "aside/" names. Writes DATA.made, safetensors, and prints what is said of them as JSON.
 */
import { readFileSync, writeFileSync } from "node:fs";

import { Bundle } from "../../web/device/bundle.js";
import { DeviceModel } from "../../web/device/engine.js";
import { make } from "../../web/device/kinds/registry.js";
import { wasmRuntime } from "../../web/device/runtime.js";
import { read, write } from "../../web/device/safetensors.js";

const ASIDE = "aside/";

const [bundlePath, workPath, dataPath] = process.argv.slice(2);
const bundle = await Bundle.open(new Uint8Array(readFileSync(bundlePath)));
const { kind, settings, seed, device } = JSON.parse(readFileSync(workPath, "utf8"));
const given = read(new Uint8Array(readFileSync(dataPath)));
const aside = new Map(
  [...given].filter(([name]) => name.startsWith(ASIDE)).map(([n, t]) => [n.slice(ASIDE.length), t]),
);

const model = new DeviceModel(bundle, await wasmRuntime({ threads: 1 }));
const data = { x: given.get("x").data, y: given.get("y").data };
const run = { seed: BigInt(seed), device, clock: () => 0, deadline: 1, aside };
const strategy = make(kind, settings).variants()[0];
const { tensors, form, numExamples, trainLoss } = await strategy.train(model, data, run);
await model.unload();
writeFileSync(`${dataPath}.made`, write(tensors));
console.log(JSON.stringify({ form, numExamples, trainLoss: Number.isNaN(trainLoss) ? null : trainLoss }));
