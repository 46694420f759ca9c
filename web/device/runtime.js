/**
 * Loads ONNX Runtime: its WASM build on one thread or several, or its WebGPU build.
 *
 * The WebGPU build is another 27 MB; it is loaded only if the browser has an adapter.
 */

import { fromHex } from "./bytes.js";
import { EngineError, EngineUnloaded } from "./errors.js";

const MOST_THREADS = 4;
/** An ONNX model of one node, y = Identity(x): its session needs all files of the library. */
const LEAST = "08083a2f0a100a017812017922084964656e746974791201675a0b0a017812060a0408011200620b0a017912060a04080112004202100d";

/** Runs graphs. `provider` is "wasm" or "webgpu"; `why` tells people why it was chosen. */
export class Runtime {
  #making = Promise.resolve();

  /** @param {any} ort the library's module @param {{provider: string, threads: number, why: string}} how */
  constructor(ort, { provider, threads, why }) {
    this.ort = ort;
    this.provider = provider;
    this.threads = threads;
    this.why = why;
  }

  /** The engine's name in a profile. @returns {string} */
  get name() {
    return `onnxruntime-web ${this.ort.env.versions.web ?? this.ort.env.versions.common} ${this.provider}`;
  }

  /**
   * A session; `given` has the content of each file that the model names. Sessions are made one at a time, because the
   * library holds the files of only one. Raises EngineError.
   * @param {Uint8Array} model @param {Map<string, Uint8Array>} given @param {string} what for the error
   * @returns {Promise<any>}
   */
  session(model, files, what) {
    const make = () =>
      engineErrors(what, () =>
        this.ort.InferenceSession.create(model, {
          executionProviders: [this.provider],
          externalData: [...files].map(([path, data]) => ({ path, data })),
          enableMemPattern: false, // a third less peak memory at the same speed
          enableCpuMemArena: false, // as fast, and memory that one session frees serves the next
          logSeverityLevel: 3,
        }),
      );
    const session = this.#making.then(make);
    this.#making = session.then(
      () => {},
      () => {},
    );
    return session;
  }
}

/**
 * Turns whatever the library throws into an EngineError of one line. @template T
 * @param {string} what @param {() => Promise<T>} work @returns {Promise<T>}
 */
export async function engineErrors(what, work) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof EngineError) throw error;
    const text = String(/** @type {any} */ (error)?.message ?? error).replace(/\s+/g, " ");
    throw new EngineError(`ONNX Runtime, ${what}: ${text.slice(0, 300)}`);
  }
}

/**
 * The WASM build, on several threads if the page is isolated from others and memory can be shared (WebKitGTK isolates
 * pages, but shares no memory), else on one. `threads`: 0 for an automatic choice. Raises EngineUnloaded if the library
 * cannot be loaded; trying again in this thread fails too, because the library and some browsers remember the failure.
 * @param {{threads?: number}} [wish]
 * @returns {Promise<Runtime>}
 */
export async function wasmRuntime({ threads = 0 } = {}) {
  const ort = await loaded(() => import("../vendor/ort/ort.wasm.min.mjs"));
  const shares = /** @type {any} */ (globalThis).crossOriginIsolated === true && "SharedArrayBuffer" in globalThis;
  const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
  const threadCount = threads || Math.max(1, Math.min(MOST_THREADS, cores - 1));
  const count = shares ? threadCount : 1;
  ort.env.wasm.numThreads = count;
  ort.env.logLevel = "error";
  const unshared = shares ? "no core is to spare" : "memory is not shared here";
  const alone = threads === 1 ? "as asked" : unshared;
  const why = count > 1 ? `WASM on ${count} threads of ${cores}` : `WASM on one thread: ${alone}`;
  const runtime = new Runtime(ort, { provider: "wasm", threads: count, why });
  const least = await loaded(() => runtime.session(fromHex(LEAST), new Map(), "its WASM build"));
  await least.release();
  return runtime;
}

/** @template T @param {() => Promise<T>} work @returns {Promise<T>} */
async function loaded(work) {
  try {
    return await engineErrors("its WASM build", work);
  } catch (error) {
    throw new EngineUnloaded(/** @type {Error} */ (error).message);
  }
}

/** The WebGPU build, or the reason why it cannot be used. @returns {Promise<Runtime | string>} */
export async function webgpuRuntime(gpu = /** @type {any} */ (globalThis.navigator)?.gpu) {
  if (!gpu) return "no WebGPU here";
  try {
    const adapter = await gpu.requestAdapter();
    if (!adapter) return "no adapter for WebGPU here";
    if (isEmulated(adapter)) return "WebGPU is emulated by the processor here, far slower than WASM";
    const ort = await import("../vendor/ort/ort.webgpu.min.mjs");
    ort.env.wasm.numThreads = 1;
    ort.env.logLevel = "error";
    return new Runtime(ort, { provider: "webgpu", threads: 1, why: "WebGPU" });
  } catch (error) {
    return `WebGPU cannot be used: ${/** @type {Error} */ (error).message}`;
  }
}

/** Whether an adapter is emulated by the processor: a trial alone would then take a minute. */
function isEmulated(/** @type {any} */ { isFallbackAdapter, info = {} }) {
  const says = [info.vendor, info.architecture, info.device, info.description].join(" ");
  return Boolean(
    isFallbackAdapter || info.isFallbackAdapter || /swiftshader|llvmpipe|basic render/i.test(says),
  );
}
