// node train.mjs BROKER FOLDER < samples.json: joins until the task is done, with samples such as [["7", [0, 3, ..]], ..]
import { text } from "node:stream/consumers";
import { join } from "device-runtime-web";

const [broker, state] = process.argv.slice(2);
const on = (event) => event.type === "receipt" && console.log(`round ${event.round}: ${event.kind} ${event.status}`);
const samples = JSON.parse(await text(process.stdin));
const device = await join({ broker, name: "node-1", state, samples, threads: 1, untilDone: true, on });
await device.ended;
process.exit(0); // the engine's threads may go on
