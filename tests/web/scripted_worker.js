// Stands for web/worker.js in tests of the page alone: tells what a device of the task would.

const LABELS = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
const INPUT = { shape: [1, 8, 8], scale: 0.0625, mean: [0.305], std: [0.376], dtype: "float32", vocabulary: null };
const INPUTS = {
  digits: { input: INPUT, labels: LABELS },
  words: { input: { ...INPUT, shape: [1, 61, 40], scale: 1 / 255 }, labels: ["yes", "no", "stop"] },
  colours: { input: { ...INPUT, shape: [3, 32, 32], scale: 1 / 255, mean: [0.5], std: [0.2] }, labels: ["cat", "dog"] },
  rows: { input: { ...INPUT, shape: [3], scale: 1 }, labels: ["low", "high"] },
  motion: { input: { ...INPUT, shape: [3, 20], scale: 1, mean: [0], std: [1], window: { step: 10, columns: ["x", "y", "z"] } }, labels: ["walking", "sitting"] },
  "motion at 50": { input: { ...INPUT, shape: [3, 20], scale: 1, mean: [0], std: [1], window: { step: 10, columns: ["x", "y", "z"], rate: 50 } }, labels: ["walking", "sitting"] },
  climate: { input: { ...INPUT, shape: [2, 20], scale: 1, mean: [0], std: [1], window: { step: 10, columns: ["heat", "light"] } }, labels: ["day", "night"] },
  texts: { input: { ...INPUT, shape: [12], dtype: "int64", vocabulary: 300, text: { form: "byte-pairs/1", before: [2], after: [3], padding: 1 } }, labels: ["good", "bad"], tokenizer: self.tokenizer },
  signs: { input: INPUT, labels: Array.from({ length: 62 }, (_, i) => "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]) },
  trades: { input: INPUT, labels: ["electrician for high voltage", "Donaudampfschifffahrtskapitän", "nurse", "a person who mends roofs of old houses in winter"] },
  sentences: { input: { ...INPUT, shape: [64], dtype: "int64", vocabulary: 1000 }, labels: ["good", "bad"] },
};
/** The task's samples, and the type of the last message, after which a test sends its own: "digits until link". */
const [NAME, LAST] = (self.scripted ?? "digits").split(" until ");
const CASE = INPUTS[NAME];
const COST = { seconds: 4.2, peakMemoryBytes: 96e6, bytesUp: 198000, bytesDown: 312000, energyJ: 12.5 };
const ROWS = [
  { kind: "full", cost: { ...COST, seconds: 91, bytesUp: 312000 }, taken: false, why: "needs 91.0 s, 54.0 s are left" },
  { kind: "entropy-subset 25%", cost: COST, taken: true, why: "chosen: the richest that fits" },
  { kind: "zeroth-order", cost: { ...COST, seconds: 0.8, bytesUp: 47, energyJ: 2 }, taken: false, why: "fits, but poorer than the chosen one" },
];
const VERDICT = "A straggler for this task (a full update needs 91.0 s, 54.0 s are left); it sends entropy-subset 25%.";
const TEXTS = {
  title: "Read handwriting",
  about: "We teach a model to read digits, for post that machines sort.",
  ask: "Draw a digit from 0 to 9, as you would write it on an envelope, and say which one it is.",
};
self.asked = []; // what the page has said

let over = LAST === "start";
function tell(message) {
  if (!over) postMessage(message);
  over ||= message.type === LAST;
}

function start() {
  const manifest = { name: "scripted", ...CASE };
  if (NAME === "unreached") return tell({ type: "log", level: "warning", text: "no broker answers" });
  tell({ type: "link", connected: true, reason: "" });
  tell({ type: "fetching", have: 156164, size: 312328 });
  const about = { engine: "onnxruntime-web wasm", why: "WASM on 2 of 4 threads", cores: 4, memoryBytes: 512e6 };
  tell({ type: "task", manifest, ...about, forwardS: 0.0012, examples: 12 });
  for (let round = 1; round <= 4; round++) begin(round);
}

self.begin = begin;

function begin(round) {
  const kind = "entropy-subset";
  const label = "entropy-subset 25%";
  tell({ type: "offer", task: "digits", run: "r", round, deadlineS: 60, remainingS: 60, done: false, ...TEXTS });
  tell({ type: "plan", round, kind, label, cost: COST, rows: ROWS, straggler: true, verdict: VERDICT, reasons: [] });
  tell({ type: "progress", round, label, share: 0.4, seconds: 1.7, leftS: 2.5 });
  if (round === 4) return;
  tell({ type: "made", round, kind, form: "25%", label, bytesUp: 198400, values: 49400, seconds: 3.9, energyJ: 11, numExamples: 40, trainLoss: 0.4 });
  tell({ type: "traffic", up: 200000 * round, down: 312000 });
  tell({ type: "receipt", round, kind, status: "accepted", reason: "" });
  tell({ type: "evaluated", round, right: Math.min(41, 14 + 5 * round), loss: 1, count: 41, otherHead: true });
}

onmessage = ({ data }) => {
  self.asked.push(data);
  if (data.do === "start") start();
  if (data.do === "battery" && data.percent < 5) throw new Error("no power");
  if (data.do === "guess") postMessage({ type: "guessed", number: data.number, shares: CASE.labels.map((_, i) => (i === CASE.labels.length - 3 ? 0.91 : 0.01)) });
  if (data.do === "leave") postMessage({ type: "left" });
};
