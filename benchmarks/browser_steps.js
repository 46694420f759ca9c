/**
 * A bundle's graphs run by the browser's modules, to be timed: in a page, or `node browser_steps.js BUNDLE.zip`,
 * which prints JSON. A step of training is forward, backward and SGD; all on 32 samples.
 */
import { Bundle } from "../web/device/bundle.js";
import { GENERATOR, RADEMACHER, direction } from "../web/device/directions.js";
import { DeviceModel } from "../web/device/engine.js";
import { Sgd } from "../web/device/optimizer.js";
import { drawn } from "../web/device/providers.js";
import { wasmRuntime, webgpuRuntime } from "../web/device/runtime.js";

const SAMPLES = 32;
const [LEAST, MOST, BUDGET_MS] = [5, 60, 3000];
const ELEMENTS = 1 << 21;
/** An emulated one, too, which a device does not take. */
const ANY_ADAPTER = { requestAdapter: async () => ({}) };

/** One bundle on one runtime. Times are wall seconds. */
export class Trials {
  #run = async () => 0;

  /** @param {Uint8Array} zip @param {{threads: number, gpu: boolean}} how */
  static async open(zip, { threads, gpu }) {
    const bundle = await Bundle.open(zip);
    const runtime = gpu ? await webgpuRuntime(ANY_ADAPTER) : await wasmRuntime({ threads });
    if (typeof runtime === "string") throw new Error(runtime);
    return new Trials(new DeviceModel(bundle, runtime));
  }

  constructor(model) {
    this.model = model;
    this.names = Object.keys(model.manifest.graphs).filter((name) => !name.startsWith("features"));
    this.engine = model.runtime.name;
  }

  /** Seconds until a graph is open and was run once. @param {string} name */
  async first(name) {
    const began = performance.now();
    this.#run = await this.#step(name);
    await this.#run();
    return (performance.now() - began) / 1000;
  }

  /** Of some runs, in some seconds: the quickest, and how many there were. */
  async runs() {
    const times = [];
    const begun = performance.now();
    while (times.length < LEAST || (times.length < MOST && performance.now() - begun < BUDGET_MS)) {
      const began = performance.now();
      await this.#run();
      times.push((performance.now() - began) / 1000);
    }
    return { least: Math.min(...times), count: times.length };
  }

  close() {
    return this.model.unload();
  }

  async #step(name) {
    const [what, tunable] = name.split(".");
    const { x, y } = drawn(this.model.manifest, SAMPLES);
    if (what === "forward") return () => this.model.logits(x);
    if (what === "loss") {
      const probe = await this.model.probe(tunable);
      return () => probe.loss(x, y);
    }
    const trainer = await this.model.trainer(tunable, what);
    const steps = new Sgd(1e-4, 0.9, 5e-4).start(trainer.params.vector);
    return async () => {
      await trainer.lossAndGrads(x, y);
      steps.step(trainer.params.vector, trainer.grads.vector);
    };
  }
}

/** Elements of a direction, some millions; how many. @param {string} generator */
export function directions(generator) {
  for (let start = 0; start < ELEMENTS; start += 1 << 15) {
    direction({ seed: 1n, index: 0n, generator }, start, 1 << 15);
  }
  return ELEMENTS;
}

export const GENERATORS = [GENERATOR, RADEMACHER];

if (globalThis.process?.argv?.[1]?.endsWith("browser_steps.js")) await inNode(process.argv[2]);

/** With processor time, of all threads, and the most memory. */
async function inNode(path) {
  const { readFileSync } = await import("node:fs");
  const cpu = () => process.cpuUsage().user / 1e6;
  const trials = await Trials.open(new Uint8Array(readFileSync(path)), {
    threads: 1,
    gpu: false,
  });
  const graphs = {};
  for (const name of trials.names) {
    const first = await trials.first(name);
    const used = cpu();
    const { least, count } = await trials.runs();
    graphs[name] = { first, least, cpu: (cpu() - used) / count };
    await trials.close();
  }
  const rates = GENERATORS.map((generator) => {
    directions(generator);
    const used = cpu();
    return [generator, directions(generator) / (cpu() - used)];
  });
  const memory = process.resourceUsage().maxRSS * 1024;
  console.log(
    JSON.stringify({ engine: trials.engine, graphs, directions: Object.fromEntries(rates), memory }),
  );
}
