// The fleet: one row a device, a page at a time.

import * as api from "./api.js";
import { button, byId, h, rowsAPage, table } from "./dom.js";
import { ago, bytes, joules, seconds } from "./format.js";

let offset = 0;
let request = 0; // of the latest: an answer to an earlier one is not shown

const spread = (d) => (d.energy_uncertainty === null ? "" : ` ± ${Math.round(100 * d.energy_uncertainty)} %`);

/** A figure or a word, and what there is to say of it on a line of its own. */
const two = (first, second) => h("span", {}, first, first && second ? h("br") : "", second);
const quiet = (text) => h("span", { class: "quiet" }, text);

/** By what it says of its engine. */
const isBrowser = (d) => d.engine.startsWith("onnxruntime-web");

/** An engine says its name and version, and in brackets why it was chosen: that is said once, below the table. */
const engineOf = (d) => d.engine.split(" (")[0];
const reasonOf = (d) => d.engine.slice(engineOf(d).length).replace(/^ \(|\)$/g, "");

/** Whether a device's program is of an earlier version than the aggregator's. */
function isOld(version, here) {
  const [ours, its] = [here, version].map((text) => text.split(/[.+]/).map((part) => parseInt(part, 10) || 0));
  const place = ours.findIndex((part, i) => part !== (its[i] ?? 0));
  return Boolean(version && here) && place >= 0 && ours[place] > (its[place] ?? 0);
}

/** What is said once of the devices of a page: why engines were chosen, and how an old program is updated. */
function notes(devices, here) {
  const engines = new Map(devices.filter(reasonOf).map((d) => [engineOf(d), reasonOf(d)]));
  const old = devices.filter((d) => isOld(d.version, here));
  const names = old.map((d) => d.device).slice(0, 3).join(", ") + (old.length > 3 ? ` and ${old.length - 3} others` : "");
  return [
    ...(old.length ? [h("p", { class: "old" }, `${names}: ${old.length > 1 ? "older programs" : "an older program"} than the aggregator's ${here}. There, in its environment: `, h("code", {}, `pip install --upgrade device-runtime==${here}`), ", and start it again.")] : []),
    ...[...engines].map(([name, reason]) => h("p", { class: "quiet" }, `${name}: ${reason}`)),
  ];
}

let here = ""; // the aggregator's version

const columns = [
  { head: "device", look: "name", cell: (d) => h("span", {}, h("span", { class: d.online ? "on" : "off" }, d.device, h("span", { class: "sr" }, d.online ? ", online" : ", offline")), ...d.tags.flatMap((tag) => [" ", h("span", { class: "label" }, tag)])) },
  { head: "class", look: "prose", cell: (d) => h("span", {}, isBrowser(d) ? h("span", { class: "browser" }, "browser") : "", " ", [d.profile, engineOf(d)].filter(Boolean).join(", "), d.version ? quiet(`, program ${d.version}`) : "", isOld(d.version, here) ? h("span", { class: "old" }, " (old)") : "") },
  { head: "battery", look: "number", cell: (d) => (d.battery_percent === null ? "" : `${d.battery_percent} %`) },
  { head: "kind", look: "name", cell: (d) => (d.kind || d.doing) && two([d.kind, d.variant].filter(Boolean).join(", "), d.doing && h("span", { class: `tag ${d.doing.replace(" ", "-")}` }, `${d.doing} in ${d.round}`)) },
  { head: "why", look: "wide", cell: (d) => d.why },
  { head: "samples", look: "number", cell: (d) => `${d.num_examples}` },
  { head: "time", look: "number", cell: (d) => (d.train_s === null ? "" : seconds(d.train_s)) },
  { head: "up", look: "number", cell: (d) => (d.bytes_up ? bytes(d.bytes_up) : "") },
  { head: "energy", look: "number", cell: (d) => (d.energy_j === null ? "" : two(`${joules(d.energy_j)}${spread(d)}`, quiet(d.energy_source))) },
  { head: "counted", look: "number", cell: (d) => two(`${d.contributions}`, d.not_counted ? quiet(`${d.not_counted} not`) : "") },
  { head: "seen", look: "stamp", cell: (d) => ago(d.last_seen) },
];

export async function show(task) {
  const filter = { search: byId("fleet-search").value, online: byId("fleet-online").checked ? true : "", offset, limit: rowsAPage() };
  const number = ++request;
  const page = await api.devices(task, filter);
  if (number !== request) return undefined;
  if (offset && offset >= page.total) {
    offset = 0;
    return show(task);
  }
  byId("fleet-table").replaceChildren(table("Devices", columns, page.devices, filter.search || filter.online ? "No device matches." : "No device has come yet."), ...notes(page.devices, here));
  const more = offset + page.devices.length < page.total;
  const where = page.total ? `${offset + 1} to ${offset + page.devices.length} of ${page.total}` : "none";
  byId("fleet-pages").hidden = page.total <= rowsAPage();
  pages(
    "fleet-pages",
    button("Previous", () => turn(task, -rowsAPage()), { disabled: offset === 0 }), h("span", { role: "status" }, where), button("Next", () => turn(task, rowsAPage()), { disabled: !more }),
  );
  return undefined;
}

export function begin(version = here) {
  offset = 0;
  here = version;
}

async function turn(task, by) {
  const before = offset;
  offset = Math.max(0, offset + by);
  try {
    await show(task);
  } catch (error) {
    offset = before;
    throw error;
  }
}

/** Shows the buttons of pages anew; the keyboard's focus stays where it was. */
export function pages(id, ...buttons) {
  const place = byId(id);
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  place.replaceChildren(...buttons);
  buttons.find((control) => control.textContent === focused)?.focus();
}
