/**
 * Runs a device in Node, with the same modules as in a browser: `node web/node/run.js --broker ws://127.0.0.1:9001
 * --name pi --data x.npz --state folder`. It logs to the standard error; with `--events` it also writes each event to
 * the standard output, as one line of JSON. `--enrol -` reads a token from the standard input; the password for the user
 * of a broker's URL comes from `--password-file` or DEVICE_RUNTIME_PASSWORD.
 */
import { parseArgs } from "node:util";

import { Agent } from "../device/agent.js";
import { DeviceModel } from "../device/engine.js";
import { enrolmentOf } from "../device/enrolment.js";
import { DeviceError, oneLine } from "../device/errors.js";
import { firstConnection } from "../device/first_connection.js";
import { Link } from "../device/link.js";
import { wasmRuntime } from "../device/runtime.js";
import { checkDevice } from "../device/topics.js";
import { parseUrl } from "../device/url.js";
import { FileDisk } from "./disk_files.js";
import { FileSamples } from "./file_samples.js";
import { nodeHost } from "./host.js";
import { PASSWORD_VARIABLE, tokenOf, warnOfVisibleSecrets, withPassword } from "./secrets.js";
import { inNode } from "./transport.js";

const OPTIONS = /** @type {const} */ ({
  broker: { type: "string" },
  enrol: { type: "string" },
  "password-file": { type: "string" },
  name: { type: "string" },
  data: { type: "string" },
  state: { type: "string" },
  task: { type: "string", default: "" },
  threads: { type: "string", default: "1" },
  "held-out": { type: "string", default: "0" },
  "until-done": { type: "boolean", default: false },
  insecure: { type: "boolean", default: false },
  events: { type: "boolean", default: false },
});

/** The exit status of a refused command, as on the command line of Python. */
const REFUSED = 2;

/** Logs a line. @param {string} text */
const log = (text) => void process.stderr.write(`${text}\n`);

/** Writes an event as JSON, a manifest by its name. @param {import("../device/event_reporter.js").DeviceEvent} event */
function printed(event) {
  /** @param {string} key @param {any} value */
  const plain = (key, value) => (key === "manifest" ? value.name : value);
  process.stdout.write(`${JSON.stringify({ at: performance.now() / 1000, ...event }, plain)}\n`);
}

/** The broker's URL, and the device's name and keys. @param {any} given */
async function connectionOf({ broker, enrol, name, insecure, "password-file": file }) {
  warnOfVisibleSecrets(process.argv.slice(2), log);
  if (file && (enrol || !broker)) {
    throw new DeviceError("--password-file is for a broker's URL, and none is given: mqtts://USER@host");
  }
  if (enrol) return enrolmentOf(await tokenOf(enrol, process.stdin));
  if (!broker) throw new DeviceError("where is the broker? Give its URL with --broker, or --enrol -");
  const variable = process.env[PASSWORD_VARIABLE];
  const url = await withPassword(parseUrl(broker, { insecure }), { file, user: name, variable, warn: log });
  const who = checkDevice(name ?? url.user ?? "");
  return { url, name: who, clientId: who, key: new Uint8Array(), secret: new Uint8Array() };
}

async function main() {
  const { values: flags } = parseArgs({ options: OPTIONS });
  if (!flags.data || !flags.state) throw new DeviceError("--data FILE and --state FOLDER are needed");
  const { url, name, clientId, key, secret, authority } = await connectionOf(flags);
  const runtime = await wasmRuntime({ threads: Number(flags.threads) });
  const tell = (/** @type {any} */ event) => {
    if (event.type === "log") log(event.text);
    if (flags.events) printed(event);
  };
  const agent = await Agent.open(
    { name, key, secret, task: flags.task },
    {
      clock: () => performance.now() / 1000,
      disk: new FileDisk(flags.state),
      open: async (bundle) => new DeviceModel(bundle, runtime),
      samples: (manifest) => FileSamples.open(flags.data, manifest, Number(flags["held-out"])),
      host: nodeHost(name),
      tell,
    },
  );
  const { will, greeting, subscriptions } = agent;
  const leveled = (/** @type {string} */ _level, /** @type {string} */ text) => log(text);
  const options = { will, greeting, subscriptions, log: leveled };
  const link = new Link(url, clientId, (event) => agent.took(event), options, inNode({ authority }));
  let isStopped = false;
  for (const signal of ["SIGINT", "SIGTERM"]) {
    process.once(signal, () => {
      isStopped = true;
      agent.stop();
    });
  }
  agent.begin(link);
  if (await firstConnection(link, leveled, () => isStopped)) await agent.run({ untilDone: flags["until-done"] });
  await link.close(agent.farewell);
}

try {
  await main();
  process.exit(0);
} catch (error) {
  if (!(error instanceof DeviceError) && error.code?.startsWith("ERR_PARSE_ARGS") !== true) throw error;
  process.stderr.write(`device-runtime: ${oneLine(error)}\n`);
  process.exit(REFUSED);
}
