// The log of contributions and refusals, the latest first.

import * as api from "./api.js";
import { button, byId, h, rowsAPage, table } from "./dom.js";
import { pages as showPages } from "./fleet.js";
import { bytes, clock, joules, plain, seconds } from "./format.js";

let pages = [null]; // `before` of each page up to this one
let request = 0; // of the latest: an answer to an earlier one is not shown

const some = (value, form) => (value === null ? "" : form(value));
const columns = [
  { head: "time", look: "stamp", cell: (e) => clock(e.at) },
  { head: "round", look: "number", cell: (e) => `${e.round}` },
  { head: "device", look: "name", cell: (e) => e.device },
  { head: "kind", look: "name", cell: (e) => e.kind },
  { head: "receipt", cell: (e) => h("span", { class: `tag ${e.status}` }, e.status === "accepted" ? "counted" : e.status) },
  { head: "why", look: "wide", cell: (e) => e.why },
  { head: "loss", look: "number", cell: (e) => some(e.train_loss, plain) },
  { head: "took", look: "number", cell: (e) => some(e.train_s, seconds) },
  { head: "up", look: "number", cell: (e) => some(e.bytes_up, bytes) },
  { head: "energy", look: "number", cell: (e) => some(e.energy_j, joules) },
];

export async function show(task) {
  const before = pages.at(-1);
  const filter = { status: byId("log-status").value, device: byId("log-device").value.trim(), before, limit: rowsAPage() };
  const number = ++request;
  const page = await api.entries(task, filter);
  if (number !== request) return;
  byId("log-table").replaceChildren(table("Contributions", columns, page.entries, "Nothing has come yet."));
  byId("log-pages").hidden = pages.length === 1 && page.next === null;
  showPages(
    "log-pages",
    button("Newer", () => turn(task, pages.slice(0, -1)), { disabled: pages.length === 1 }),
    h("span", {}, pages.length > 1 ? `page ${pages.length}` : "the latest"),
    button("Older", () => turn(task, [...pages, page.next]), { disabled: page.next === null }),
  );
}

/** Whether the latest page is shown, which changes as things happen. */
export const latest = () => pages.length === 1;

export function begin() {
  pages = [null];
}

async function turn(task, to) {
  const before = pages;
  pages = to;
  try {
    await show(task);
  } catch (error) {
    pages = before;
    throw error;
  }
}
