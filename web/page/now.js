/** The section "Now": the round, what is done in it, what was sent, and why. */

import { byId, h, say, tiles } from "./dom.js";
import { bytes, joules, percent, plural, seconds } from "./format.js";
import { became, called, does, idle, sends, verdict } from "./meaning.js";

const ROUND = "Waiting for the next round …";
/** Where this browser keeps in how many rounds it helped, and the last of them. */
const HELPED = "device-runtime helped";

export class Now {
  constructor() {
    /** Whether the task is over. */
    this.over = false;
    this._said = "Connecting …";
    this._round = { task: "", run: "", number: 0 };
    /** @type {any} */
    this._plan = null;
    /** @type {any} */
    this._made = null;
    /** @type {any} */
    this._progress = null;
    this._ended = false;
    [this._helped, this._last] = JSON.parse(globalThis.localStorage?.getItem(HELPED) ?? '[0, ""]');
    this._counted = 0;
    /** The share of samples held out here that the model has right. @type {number | null} */
    this._right = null;
    this._up = 0;
    /** @type {string[]} */
    this._paused = [];
  }

  /** Whether a round is being worked on. */
  get training() {
    return !this.over && !this._ended && Boolean(this._plan?.label) && this._made?.round !== this._plan.round;
  }

  /** @param {string[]} reasons empty: the device is not paused */
  paused(reasons) {
    this._paused = reasons;
    this._show();
  }

  /** Take a message of the worker; those that concern other sections change nothing here. */
  hear(message) {
    if (message.type === "offer") this._begin(message);
    if (message.type === "plan") [this._plan, this._progress, this._ended] = [message, null, false];
    if (message.type === "unloaded") this._plan = this._progress = null;
    const gaveUp = message.type === "ended" && this.training;
    if (message.type === "ended") this._ended = true;
    if (message.type === "progress") this._progress = message;
    if (message.type === "made") this._made = message;
    if (message.type === "traffic") this._up = message.up;
    if (message.type === "receipt" && ["accepted", "duplicate"].includes(message.status)) this._count(message.round);
    if (message.type === "evaluated") this._right = message.right / message.count;
    this._said = (gaveUp ? `Round ${message.round}: nothing was sent. ${ROUND}` : line(message, this)) ?? this._said;
    this._show();
  }

  /** Figures of all rounds. @returns {[string, string][]} */
  get totals() {
    return [
      ["Contributions counted", this._counted ? String(this._counted) : ""],
      ["Sent in all", this._up ? bytes(this._up) : ""],
    ];
  }

  /** A round counted; it may be told again, also after a reload. @param {number} round */
  _count(round) {
    const key = `${this._round.run} ${round}`;
    if (key === this._last) return;
    this._counted += 1;
    [this._helped, this._last] = [this._helped + 1, key];
    globalThis.localStorage?.setItem(HELPED, JSON.stringify([this._helped, key]));
  }

  _begin({ task, run, round, done }) {
    this.over = done;
    const isAnother = run !== this._round.run; // rounds of another run have the same numbers
    if (isAnother) this._made = null;
    if (isAnother || this._plan?.round !== round) this._plan = this._progress = null;
    this._round = { task, run, number: round };
  }

  _show() {
    const plan = this._plan;
    say(byId("state"), this._paused.length ? `Paused: ${this._paused.join(", ")}.` : this._said);
    const knows = this._right === null ? "" : `; it has ${percent(this._right)} right`;
    say(byId("helped"), this._helped ? `You helped ${plural(this._helped, "time")}${knows}` : "");
    byId("progress").hidden = !this.training;
    byId("progress").value = this._progress?.share ?? 0;
    const why = () => (plan.label ? does(plan.label) : lacksSamples(plan) ? "" : idle(plan));
    say(byId("does"), plan && !this.over ? why() : "");
    tiles(byId("round"), [
      ["Task", this._round.task],
      ["Round", this._round.number ? String(this._round.number) : ""],
      ["Time, estimated", plan?.cost ? seconds(plan.cost.seconds) : ""],
      ["Energy, estimated", plan?.cost ? joules(plan.cost.energyJ) : ""],
      ["Left, estimated", this.training && this._progress ? seconds(this._progress.leftS) : ""],
    ]);
    if (this._made) say(byId("sent"), `Sent in round ${this._made.round}: ${sends(this._made)}. Computing it took ${seconds(this._made.seconds)}.`);
    byId("explain").hidden = !plan || this.over;
    if (plan) explain(plan);
  }
}

/** Deletes in how many rounds this browser helped. */
export const forgetHelped = () => localStorage.removeItem(HELPED);

/** What happens now, in one line; null if a message does not change it. @param {any} told @param {Now} now */
function line(message, now) {
  const lines = {
    link: () => (now.over ? null : message.connected ? "Connected. Asking for the task …" : "Waiting for the network. What you add is kept until then."),
    unloaded: () => `A part of the page did not arrive. Trying again in ${seconds(message.wait)} …`,
    fetching: () => (now.training || now.over ? null : fetched(message)),
    task: () => (now.over ? null : message.examples ? "The model is here." : "The model is here. It needs samples: teach it, or choose files."),
    offer: () => (now.training && !message.done ? null : offered(message)),
    plan: () => (message.label ? `Round ${message.round}: working …` : `Round ${message.round}: ${sitsOut(message)}`),
    made: () => `Round ${message.round}: done here, and sent. Waiting for the receipt …`,
    receipt: () => `Round ${message.round}: ${became(message)}.${message.status === "refused" ? "" : ` ${ROUND}`}`,
  };
  return lines[message.type]?.() ?? null;
}

/** The last bytes are here long before the model is: it is checked, and its speed is measured. */
const fetched = ({ have, size }) => (have < size ? `Fetching the model: ${bytes(have)} of ${bytes(size)}` : "Getting the model ready …");

const lacksSamples = ({ reasons }) => reasons.some((reason) => reason.includes("no local data"));

const sitsOut = (plan) => (lacksSamples(plan) ? "no samples here yet. Add a few, then it can help." : "this device sits out.");

function offered({ done, round }) {
  if (done) return `The task is over after ${plural(round, "round")}. Thank you!`;
  return round ? `Round ${round} is open. Getting the model ready …` : "The next round begins when enough devices have samples.";
}

/** Shows the table of kinds: what each would cost here, and why it is chosen or not. */
function explain(plan) {
  say(byId("verdict"), verdict(plan));
  const content = JSON.stringify(plan.rows);
  if (byId("rows").dataset.shown === content) return;
  byId("rows").dataset.shown = content;
  const heads = ["What it could do", "Time", "Memory", "Sends", "Energy", "Why"];
  const rows = plan.rows.map((row) =>
    h(
      "tr",
      { class: row.taken ? "taken" : null },
      h("th", { scope: "row" }, called(row.kind)),
      ...cells(row).map((cell, i) => h("td", { "data-head": heads[i + 1] }, cell)),
    ),
  );
  const head = h("tr", {}, ...heads.map((name) => h("th", { scope: "col" }, name)));
  byId("rows").replaceChildren(h("table", {}, h("caption", { class: "sr" }, "What this device could do"), h("thead", {}, head), h("tbody", {}, ...rows)));
}

function cells({ cost, why }) {
  const costs = cost && [seconds(cost.seconds), bytes(cost.peakMemoryBytes), bytes(cost.bytesUp), `${cost.energyJ.toPrecision(2)} J`];
  return [...(costs ?? ["–", "–", "–", "–"]), why];
}

/**
 * Shows what is known of this device, as tiles and a line.
 * @param {any} told the worker's message "task"; null before it has come
 * @param {{name: string, persisted: boolean, totals: [string, string][]}} own
 */
export function showDevice(profile, { name, persisted, totals }) {
  tiles(byId("device"), [
    ["Name", name],
    ["Processor cores", profile ? String(profile.cores) : ""],
    ["Memory it may use", profile ? bytes(profile.memoryBytes) : ""],
    ["Storage", persisted ? "kept until deleted" : "kept while there is room"],
    ...totals,
  ]);
  say(byId("computes"), profile ? `Computes by ${profile.why}.` : "");
}
