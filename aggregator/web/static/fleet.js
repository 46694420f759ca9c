// The fleet: one row a device, a page at a time.

import * as api from "./api.js";
import { byId, h, table } from "./dom.js";
import { ago, bytes, joules, seconds } from "./format.js";

const PAGE = 25;
let offset = 0;

const columns = [
  { head: "device", cell: (d) => h("span", { class: d.online ? "on" : "off" }, d.device, h("span", { class: "sr" }, d.online ? ", online" : ", offline")) },
  { head: "class", cell: (d) => [d.profile, d.engine].filter(Boolean).join(", ") },
  { head: "battery", number: true, cell: (d) => (d.battery_percent === null ? "" : `${d.battery_percent} %`) },
  { head: "kind", cell: (d) => d.kind || d.doing },
  { head: "why", wide: true, cell: (d) => d.why },
  { head: "now", cell: (d) => h("span", { class: `tag ${d.doing.replace(" ", "-")}` }, d.doing && `${d.doing} in ${d.round}`) },
  { head: "samples", number: true, cell: (d) => `${d.num_examples}` },
  { head: "time", number: true, cell: (d) => (d.train_s === null ? "" : seconds(d.train_s)) },
  { head: "up", number: true, cell: (d) => (d.bytes_up ? bytes(d.bytes_up) : "") },
  { head: "energy", number: true, cell: (d) => (d.energy_j === null ? "" : joules(d.energy_j)) },
  { head: "counted", number: true, cell: (d) => `${d.contributions}${d.not_counted ? ` (${d.not_counted} not)` : ""}` },
  { head: "seen", cell: (d) => ago(d.last_seen) },
];

export async function show(task) {
  const wanted = { search: byId("fleet-search").value, online: byId("fleet-online").checked ? true : "", offset, limit: PAGE };
  const page = await api.devices(task, wanted);
  if (offset && offset >= page.total) {
    offset = 0;
    return show(task);
  }
  byId("fleet-table").replaceChildren(table("Devices", columns, page.devices, "No device matches."));
  const more = offset + page.devices.length < page.total;
  const where = page.total ? `${offset + 1} to ${offset + page.devices.length} of ${page.total}` : "none";
  byId("fleet-pages").replaceChildren(
    button("Previous", offset > 0, () => turn(task, -PAGE)), h("span", { role: "status" }, where), button("Next", more, () => turn(task, PAGE)),
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

export function button(text, enabled, act) {
  const made = h("button", { type: "button", disabled: !enabled }, text);
  made.addEventListener("click", act);
  return made;
}
