// The fleet: one row a device, a page at a time.

import * as api from "./api.js";
import { byId, h, rowsAPage, table } from "./dom.js";
import { ago, bytes, joules, seconds } from "./format.js";

let offset = 0;
let request = 0; // of the latest: an answer to an earlier one is not shown

const spread = (d) => (d.energy_uncertainty === null ? "" : ` ± ${Math.round(100 * d.energy_uncertainty)} %`);

/** A figure or a word, and what there is to say of it on a line of its own. */
const two = (first, second) => h("span", {}, first, first && second ? h("br") : "", second);
const quiet = (text) => h("span", { class: "quiet" }, text);

/** By what it says of its engine. */
const isBrowser = (d) => d.engine.startsWith("onnxruntime-web");

const columns = [
  { head: "device", look: "name", cell: (d) => h("span", { class: d.online ? "on" : "off" }, d.device, h("span", { class: "sr" }, d.online ? ", online" : ", offline")) },
  { head: "class", look: "prose", cell: (d) => h("span", {}, isBrowser(d) ? h("span", { class: "browser" }, "browser") : "", " ", [d.profile, d.engine].filter(Boolean).join(", ")) },
  { head: "battery", look: "number", cell: (d) => (d.battery_percent === null ? "" : `${d.battery_percent} %`) },
  { head: "kind", look: "name", cell: (d) => (d.kind || d.doing) && two(d.kind, d.doing && h("span", { class: `tag ${d.doing.replace(" ", "-")}` }, `${d.doing} in ${d.round}`)) },
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
  byId("fleet-table").replaceChildren(table("Devices", columns, page.devices, "No device matches."));
  const more = offset + page.devices.length < page.total;
  const where = page.total ? `${offset + 1} to ${offset + page.devices.length} of ${page.total}` : "none";
  pages(
    "fleet-pages",
    button("Previous", offset > 0, () => turn(task, -rowsAPage())), h("span", { role: "status" }, where), button("Next", more, () => turn(task, rowsAPage())),
  );
  return undefined;
}

export function begin() {
  offset = 0;
}

function turn(task, by) {
  offset = Math.max(0, offset + by);
  return show(task);
}

/** A button that asks for another page; one that gets no answer stays, to be tried again. */
export function button(text, enabled, act) {
  const element = h("button", { type: "button", disabled: !enabled }, text);
  element.addEventListener("click", () => act().catch(() => {}));
  return element;
}

/** Shows the buttons of pages anew; the keyboard's focus stays where it was. */
export function pages(id, ...buttons) {
  const place = byId(id);
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  place.replaceChildren(...buttons);
  buttons.find((control) => control.textContent === focused)?.focus();
}
