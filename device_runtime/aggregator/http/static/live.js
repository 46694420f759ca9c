// Where the task is now, and what its closed rounds came to.

import { byId, h } from "./dom.js";
import { columns, lines, swatch } from "./charts.js";
import { UNITS, ago, bytes, count, joules, metric, plain, seconds } from "./format.js";

const COLOURS = 8;
const BYTES = { form: bytes, units: UNITS.bytes, name: "sent in a round" };
const JOULES = { form: joules, units: UNITS.joules, name: "used in a round" };
const SECONDS = { form: seconds, units: UNITS.seconds, low: 0, name: "of training" };
const NUMBER = { form: (value) => count(Number(value.toPrecision(3))), name: "contributions in a round", whole: true };

/** What a metric is on an axis: an accuracy is from 0 to 100 %. */
const measureOf = (name) => (name.endsWith("accuracy") ? { form: metric(name), units: UNITS.percent, low: 0, high: 1, name } : { form: plain, name });

/** What the task is, in the words of its file. */
export function title({ name, settings }) {
  byId("now").textContent = settings.title || name;
  byId("about").textContent = [settings.about, settings.ask].filter(Boolean).join(" ");
}

export function tiles(live) {
  const figures = [
    ["round", `${live.round} of ${live.rounds}`],
    ["devices online", `${count(live.online)} of ${count(live.devices)}`],
    ...(heldOut(live) ? heldOutFigures(live) : [[live.metric, metric(live.metric)(live.accuracy)]]),
    ...Object.entries(live.metrics).map(([name, value]) => [name, plain(value)]),
    ...(heldOut(live) ? [] : [["loss", plain(live.loss)]]),
    ["up / down, all rounds", `${bytes(live.bytes_up)} / ${bytes(live.bytes_down)}`],
    ["energy, all rounds", joules(live.energy_j)],
  ];
  byId("tiles").replaceChildren(...figures.map(([name, value]) => h("dl", { class: "tile" }, h("dt", {}, name), h("dd", {}, value))));
}

/** Whether the model is judged on samples that devices held out, as there are no evaluation data. */
const heldOut = (entry) => entry.accuracy === null && entry.held_out_accuracy !== null;

/** Tiles of the served head, and of the other one where devices compared the two. */
function heldOutFigures(live) {
  const [samples, shown] = [`${count(live.held_out_samples)} samples held out`, metric(live.metric)];
  const [served, other] = [live.held_out_accuracy, live.held_out_other_accuracy];
  if (other === null) return [[`${live.metric} on ${samples} by devices`, shown(served)]];
  const heads = ["closed-form head", "trained head"];
  if (live.held_out_head === "trained") heads.reverse();
  return [
    [`${heads[0]} (served), on ${samples}`, shown(served)],
    [`${heads[1]}, on the same`, shown(other)],
  ];
}

/** The open round at the time `now`, by the aggregator's clock. `least`: the devices that round 1 waits for. */
export function round(live, kinds, now, least) {
  const come = Object.entries(live.contributions);
  const total = come.reduce((sum, [, number]) => sum + number, 0);
  const parts = [h("p", { class: "state" }, state(live, now, least))];
  if (live.phase === "collecting") {
    const share = Math.min(1, Math.max(0, (now - live.opened_at) / Math.max(1e-9, live.closes_at - live.opened_at)));
    parts.push(h("progress", { max: 1, value: share, "aria-label": "time of the round that has passed" }));
    parts.push(h("p", {}, `${total} of at least ${live.needed} contributions, ${live.not_counted} not counted, ${live.sitting_out} sitting out`));
    parts.push(h("ul", { class: "legend" }, ...come.map(([kind, number]) => h("li", {}, swatch(colour(kind, kinds)), `${number} ${kind}`))));
  }
  if (live.note) parts.push(h("p", { class: "quiet" }, live.note));
  byId("round").replaceChildren(...parts);
}

function state(live, now, least) {
  if (live.phase === "waiting") return live.online < least ? `Waiting for devices: ${live.online} of ${least} are online.` : "Waiting for devices that are ready.";
  if (live.phase === "finished") return "The task is finished. For more rounds, set a larger number in its file and start serve again.";
  if (live.phase === "starting") return "Starting.";
  if (live.phase === "unmasking") return `Round ${live.round} opens the sums of its masked updates.`;
  const left = live.closes_at - now;
  const end = left > 0 ? `${seconds(Math.ceil(left))} left` : "merging, or about to";
  return `Round ${live.round} collects, opened ${ago(live.opened_at, now)}, ${end}${live.extended ? `, extended ${live.extended} times` : ""}.`;
}

export function charts(rounds, kinds) {
  byId("no-rounds").hidden = rounds.length > 0;
  if (!rounds.length) {
    byId("charts").replaceChildren();
    return;
  }
  const numbers = rounds.map((entry) => entry.round);
  const line = (name, place, pick) => ({ name, colour: place, values: rounds.map(pick) });
  const measured = (series) => series.filter((curve) => curve.values.some((value) => value !== null));
  const byKind = (pick) => kinds.map((kind) => ({ name: kind, colour: colour(kind, kinds), values: rounds.map((entry) => (entry.kinds[kind] ? pick(entry.kinds[kind]) : null)) })).filter((entry) => entry.values.some((value) => value !== null));
  const judged = rounds.findLast((entry) => entry.accuracy !== null) ?? rounds[0];
  const accuracy = measured([line(judged.metric, 0, (entry) => entry.accuracy), line("on samples held out by devices, of the round before", 1, (entry) => entry.held_out_accuracy), line("on the same samples, with the head that was not served", 2, (entry) => entry.held_out_other_accuracy)]);
  const further = Object.keys(judged.metrics).map((name) => lines(name, numbers, [line(name, 0, (entry) => entry.metrics[name] ?? null)], measureOf(name)));
  const losses = measured([line("served model", 0, (entry) => entry.loss), line("in training", 1, (entry) => entry.train_loss)]);
  const each = (name) => (figures) => figures[name] / figures.contributions;
  byId("charts").replaceChildren(
    ...[
      accuracy.length ? lines(judged.metric === "accuracy" ? "Accuracy" : judged.metric, numbers, accuracy, measureOf(judged.metric)) : null,
      ...further,
      losses.length ? lines("Loss", numbers, losses, { form: plain, name: "loss" }) : null,
      columns("Contributions", numbers, byKind((figures) => figures.contributions), NUMBER),
      columns("Bytes up, by kind", numbers, byKind((figures) => figures.bytes_up), BYTES),
      columns("Energy, by kind", numbers, byKind((figures) => figures.energy_j), JOULES),
      lines("Training time of one, by kind", numbers, byKind(each("train_s")), SECONDS),
    ].filter(Boolean),
  );
}

/** All kinds that were ever seen, each always in the same place and so in the same colour. */
export function kindsOf(rounds, live, offered) {
  const names = new Set(offered);
  for (const entry of rounds) for (const kind of Object.keys(entry.kinds)) names.add(kind);
  for (const kind of Object.keys(live.contributions)) names.add(kind);
  return [...names];
}

const colour = (kind, kinds) => Math.max(0, kinds.indexOf(kind)) % COLOURS;
