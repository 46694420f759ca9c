/**
 * Contributions made by the browser's modules: `node contribute.mjs BUNDLE.zip WORK.json DATA.safetensors`.
 *
 * WORK.json has seed (text), device, round, rare, and a list of works, each a kind with its settings; the data x float32 or
 * int32 (n, *input), y int32 (n,), and under "aside/" names what is sent beside the base. Writes the tensors
 * of work i to DATA.i, and prints what is said of each as JSON. If WORK.json has masks (keys of helpers in hex digits),
 * writes the masked content to DATA.i.masked too.
 */
import { readFileSync, writeFileSync } from "node:fs";

import { Bundle } from "../../web/device/bundle.js";
import { fromHex, hex } from "../../web/device/bytes.js";
import { train } from "../../web/device/class_statistics.js";
import { DeviceModel } from "../../web/device/engine.js";
import { make } from "../../web/device/kinds/registry.js";
import { masked } from "../../web/device/masking/masked_update.js";
import { wasmRuntime } from "../../web/device/runtime.js";
import { read, write } from "../../web/device/safetensors.js";

const ASIDE = "aside/";

const [bundlePath, workPath, dataPath] = process.argv.slice(2);
const bundle = await Bundle.open(new Uint8Array(readFileSync(bundlePath)));
const { seed, device, works, round, rare, masks } = JSON.parse(readFileSync(workPath, "utf8"));
const given = read(new Uint8Array(readFileSync(dataPath)));
const beside = [...given].filter(([name]) => name.startsWith(ASIDE));
const aside = new Map(beside.map(([name, tensor]) => [name.slice(ASIDE.length), tensor]));

const runtime = await wasmRuntime({ threads: 1 });
const data = { x: given.get("x").data, y: given.get("y").data };
const run = { seed: BigInt(seed), device, clock: () => 0, deadline: 1, aside, round, rare };
const said = [];
for (const [i, { kind, settings }] of works.entries()) {
  const model = new DeviceModel(bundle, runtime);
  const [richest] = make(kind, settings).variants();
  const update = { ...(await train(richest, model, data, run)), kind };
  const { tensors, form, numExamples, trainLoss } = update;
  await model.unload();
  writeFileSync(`${dataPath}.${i}`, write(tensors));
  const mask = masks ? await writeMasked(`${dataPath}.${i}.masked`, update, { form: richest, settings }) : null;
  said.push({ form, numExamples, trainLoss: Number.isNaN(trainLoss) ? null : trainLoss, mask });
}

console.log(JSON.stringify(said));

/** Writes the masked content to this file; returns the mask in hex digits. */
async function writeMasked(path, update, { form, settings }) {
  const helpers = masks.helpers.map((key) => ({ name: "", key: fromHex(key) }));
  const kinds = [{ name: update.kind, settings }];
  const offer = { task: "digits", run: "r1", round, kinds, masks: { ...masks, helpers } };
  const given = { offer, base: bundle.weights(), manifest: bundle.manifest, device };
  const { body, mask } = await masked(update, form, given);
  writeFileSync(path, body);
  return { key: hex(mask.key), tags: mask.tags.map(hex) };
}
