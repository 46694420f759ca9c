import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { choose } from "../device/choose.js";
import { Speed } from "../device/cost.js";
import { rows, verdict } from "../device/explain.js";
import { make } from "../device/kinds/registry.js";
import { readManifest } from "../device/manifest.js";
import { uploadTerms } from "../device/masking/masked_update.js";
import { restReason } from "../device/resting.js";
import { corrected } from "../device/work.js";
import { workload } from "../device/workload.js";
import { vectors } from "./vectors.js";

const cases = vectors("choosing");
const FOLDER = new URL(`../../models/bundles/${cases.bundle}/`, import.meta.url);
const manifest = await readManifest(new Uint8Array(readFileSync(new URL("manifest.json", FOLDER))));

const map = (object) => new Map(Object.entries(object));

function profileOf({ name, cores, memory, speed, bandwidth, power, ...learnt }) {
  const [totalBytes, limitBytes, residentBytes] = memory;
  const [up, down] = bandwidth;
  const [idleW, loadW] = power;
  const { seconds, opening, held_bytes: heldBytes, step_s: stepS, run_bytes: runBytes } = speed;
  const maps = { seconds: map(seconds), opening: map(opening), heldBytes: map(heldBytes) };
  return {
    name,
    cores,
    memory: { totalBytes, limitBytes, residentBytes },
    speed: new Speed(speed.flops_per_s, { ...maps, stepS, runBytes }),
    bandwidth: { up, down, source: "" },
    power: { idleW, loadW, source: "", uncertainty: 0.5 },
    engine: "",
    corrections: map(learnt.corrections),
    growth: map(learnt.growth),
  };
}

const table = ({ profile, kinds, counts, remaining_s: remainingS, masks }) => {
  const offer = { kinds: kinds.map(([name, settings]) => ({ name, settings })), masks };
  return choose(
    profileOf(profile),
    kinds.map(([name, settings]) => make(name, settings)),
    workload(manifest, counts).with({ downloadBytes: 0 }),
    remainingS,
    masks && uploadTerms(offer, manifest),
  );
};

/** Equality up to the rounding of float64 sums: Python 3.12 and later sum without rounding errors. */
const near = (actual, expected) => Math.abs(actual - expected) <= 1e-14 * Math.abs(expected);

test("the workload of the shipped bundle is Python's", () => {
  const expected = cases.workload;
  const load = workload(manifest, expected.counts);
  const graphs = [...load.graphs].map(([name, graph]) => {
    return [name, [graph.flops, graph.fixedBytes, graph.bytesPerSample, graph.rows, graph.fileBytes]];
  });
  assert.deepEqual(Object.fromEntries(graphs), expected.graphs);
  assert.deepEqual(Object.fromEntries(load.parameters), expected.parameters);
  assert.deepEqual(Object.fromEntries(load.tensors), expected.tensors);
  const { weightsBytes, downloadBytes, featureWidth, sampleBytes } = load;
  assert.deepEqual([weightsBytes, downloadBytes, featureWidth, sampleBytes], expected.sizes);
});

for (const [place, expected] of cases.tables.entries()) {
  const kinds = expected.kinds.map(([name]) => name).join(", ");
  test(`table ${place}: ${expected.profile.name} in ${expected.remaining_s} s, of ${kinds}`, () => {
    const plan = table(expected);
    assert.equal(plan.chosen?.label ?? "", expected.chosen);
    assert.deepEqual(plan.straggler.reasons, expected.straggler);
    assert.deepEqual(plan.reasons, expected.reasons);
    assert.deepEqual(plan.candidates.map((option) => option.label), expected.candidates.map((option) => option.label));
    for (const [at, { label, cost, misfits }] of plan.candidates.entries()) {
      const python = expected.candidates[at];
      assert.deepEqual(misfits, python.misfits, label);
      assert.equal(cost === null, python.cost === null, label);
      if (!cost) continue;
      const { seconds, computeS, peakMemoryBytes, bytesUp, bytesDown, energyJ, flops } = cost;
      const figures = [seconds, computeS, peakMemoryBytes, bytesUp, bytesDown, energyJ, flops];
      figures.forEach((figure, i) => assert.ok(near(figure, python.cost[i]), `${label}: ${figures} ${python.cost}`));
    }
  });
}

test("who rests, and why, is as in Python", async () => {
  const [statistics, training] = cases.shortages.map((shares) => Uint8Array.from(shares));
  for (const expected of cases.tables) {
    const load = workload(manifest, expected.counts);
    for (const [seed, why] of Object.entries(expected.rests)) {
      const run = { seed: BigInt(seed), device: "pi-ü" };
      assert.equal(await restReason({ statistics, training }, run, table(expected), load), why);
    }
  }
  assert.ok(cases.tables.some(({ rests }) => Object.values(rests).some(Boolean)));
});

test("corrections move towards measurements as in Python", () => {
  for (const { before, timings, after } of cases.corrected) {
    const spent = timings.map(([kind, predictedS, seconds]) => ({ kind, predictedS, seconds }));
    const factors = corrected({ corrections: map(before) }, { timings: spent });
    assert.deepEqual([...factors.keys()], Object.keys(after));
    for (const [kind, value] of factors) assert.ok(near(value, after[kind]), `${kind}: ${value}, ${after[kind]}`);
  }
});

test("the table says in words what was chosen and why nothing richer", () => {
  const late = cases.tables.find((example) => example.chosen === "few-shot");
  const plan = table(late);
  const lines = rows(plan);
  const chosen = lines.find((row) => row.taken);
  assert.equal(chosen.kind, "few-shot");
  assert.equal(chosen.why, "chosen: the richest that fits");
  assert.match(lines[0].why, /^needs \d+\.\d s and has \d+\.\d s \(mostly to compute\)/);
  const means = lines.find((row) => row.kind === "class-means");
  assert.equal(means.why, "fits, but poorer than the chosen one");
  assert.match(verdict(plan), /^A straggler for this task \(a full update needs .*\); it sends few-shot\.$/);
  const nothing = table(cases.tables.find((example) => !example.chosen));
  assert.equal(verdict(nothing), "Nothing fits: this device would sit the round out.");
});
