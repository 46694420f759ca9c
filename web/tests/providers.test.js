import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { drawn, judged, runtimeFor } from "../device/providers.js";
import { Runtime, wasmRuntime, webgpuRuntime } from "../device/runtime.js";
import { files, packed } from "./shipped.js";

const bundle = await Bundle.open(packed(files("digits-wrn-10-1")));
const runtime = (provider) => new Runtime({ env: { versions: {} } }, { provider, threads: 1, why: provider });
const tried = (provider, seconds, ...values) => {
  return {
    runtime: runtime(provider),
    seconds,
    results: [Float32Array.of(1, -200), Float32Array.from(values)],
  };
};

test("WebGPU is chosen if it agrees and is faster, with the reason", () => {
  const choice = judged(tried("wasm", 0.1, 1, 2), tried("webgpu", 0.01, 1.0005, 2));
  assert.equal(choice.provider, "webgpu");
  assert.match(choice.why, /agrees with WASM to 0.0002\d: 10.0 ms a step against 100 ms/);
});

test("WebGPU that is slower, differs or gives NaN is not chosen, with the reason", () => {
  const slower = judged(tried("wasm", 0.1, 1, 2), tried("webgpu", 0.2, 1, 2));
  assert.equal(slower.provider, "wasm");
  assert.match(slower.why, /WebGPU agrees but is slower: 200 ms a step against 100 ms/);
  const apart = judged(tried("wasm", 0.1, 1, 2), tried("webgpu", 0.01, 1.1, 2));
  assert.equal(apart.provider, "wasm");
  assert.match(apart.why, /WebGPU differs by 0.05\d of the largest value/);
  assert.equal(judged(tried("wasm", 0.1, 1, 2), tried("webgpu", 0.01, NaN, 2)).provider, "wasm");
});

test("without WebGPU, or if the processor emulates it, WASM is chosen", async () => {
  const choice = await runtimeFor(bundle, { threads: 1 });
  assert.equal(choice.provider, "wasm");
  assert.match(choice.why, /^WASM on one thread: as asked; no WebGPU here$/);
  const emulated = {
    requestAdapter: async () => ({ info: { vendor: "google", architecture: "swiftshader" } }),
  };
  assert.match(String(await webgpuRuntime(emulated)), /emulated by the processor/);
  assert.match(String(await webgpuRuntime({ requestAdapter: async () => null })), /no adapter/);
  const broken = { requestAdapter: () => Promise.reject(new Error("lost")) };
  assert.equal(await webgpuRuntime(broken), "WebGPU cannot be used: lost");
});

test("WASM has several threads only if memory can be shared", async () => {
  const alone = await wasmRuntime({ threads: 2 });
  assert.deepEqual(
    [alone.threads, alone.why],
    [1, "WASM on one thread: memory is not shared here"],
  );
  const shareable = globalThis.SharedArrayBuffer;
  globalThis.crossOriginIsolated = true;
  try {
    const shared = await wasmRuntime({ threads: 2 });
    assert.equal(shared.threads, 2);
    assert.match(shared.why, /^WASM on 2 threads of \d+$/);
    delete globalThis.SharedArrayBuffer;
    assert.equal((await wasmRuntime({ threads: 2 })).threads, 1);
  } finally {
    delete globalThis.crossOriginIsolated;
    globalThis.SharedArrayBuffer = shareable;
    await wasmRuntime({ threads: 1 });
  }
});

test("samples for the trial are of every class, and within the vocabulary if there is one", () => {
  const { x, y } = drawn(bundle.manifest, 20);
  assert.equal(x.length, 20 * 64);
  assert.deepEqual([...new Set(y)].length, 10);
  const text = drawn({ input: { shape: [3], vocabulary: 50 }, labels: ["a", "b"] }, 30);
  assert.ok(text.x instanceof Int32Array && text.x.every((id) => id >= 0 && id < 50));
});
