// Browsers that are to join: the page that they open, one-time links with their QR codes, who has used one.

import * as api from "./api.js";
import { button, byId, h, s, table } from "./dom.js";
import { clock } from "./format.js";

const BORDER = 4; // modules, light, around a QR code

/** A QR code, dark on light in any colour scheme. `rows`: of its modules, "1" is dark. */
function drawn(rows, what) {
  const size = rows.length + 2 * BORDER;
  const runs = rows.flatMap((row, y) => [...row.matchAll(/1+/g)].map((run) => `M${run.index + BORDER} ${y + BORDER}h${run[0].length}v1h-${run[0].length}z`));
  return s("svg", { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": what }, s("rect", { width: size, height: size }), s("path", { d: runs.join("") }));
}

let lastKey = "";

/** Whether there is a page to join by. Drawn anew only when something has changed: buttons stay where they are. */
export async function show() {
  const links = await api.links();
  const key = JSON.stringify(links);
  if (key === lastKey) return;
  lastKey = key;
  byId("invite").hidden = !links.page;
  if (!links.page) return;
  byId("invite-page").replaceChildren(h("a", { href: links.page, rel: "noreferrer" }, links.page));
  byId("invite-how").textContent = links.open
    ? "Whoever opens it joins: the broker is open to this machine."
    : links.makes
      ? "By a one-time link, that a phone reads as a QR code. It enrols one browser."
      : "By a token of `device-runtime device add NAME`, behind a #: links are not made here.";
  byId("invite-form").hidden = !links.makes;
  if (links.open) byId("invite-made").replaceChildren(drawn(links.qr, "QR code of the page"));
  byId("invite-table").replaceChildren(...(links.links.length ? [table("Links", columns, links.links, "")] : []));
}

/** Make a link, and show it: only now can it be. */
export async function make() {
  const { link, url, qr } = await api.invite({ device: byId("invite-device").value.trim(), minutes: byId("invite-minutes").value });
  byId("invite-device").value = "";
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(url);
    copy.textContent = "Copied";
  });
  byId("invite-made").replaceChildren(
    drawn(qr, "QR code of the link"),
    h("p", {}, h("code", {}, url), " ", copy),
    h("p", { class: "quiet" }, `Good for one browser, until ${clock(link.ends)}. It is shown only here and now.`),
  );
  return show();
}

const columns = [
  { head: "device", look: "name", cell: (link) => link.device || "of its choice" },
  { head: "link", cell: (link) => h("span", { class: `tag ${link.state}` }, link.state) },
  { head: "made", look: "stamp", cell: (link) => clock(link.made) },
  { head: "good until", look: "stamp", cell: (link) => clock(link.ends) },
  { head: "used", look: "stamp", cell: (link) => (link.used === null ? "" : clock(link.used)) },
  { head: "", cell: (link) => (link.state === "open" || link.state === "used" ? revoking(link) : "") },
];

function revoking(link) {
  const revoke = async () => {
    await api.revoke(link.id);
    await show();
  };
  return h("span", {}, button("Revoke", revoke, { "aria-label": `Revoke ${link.device || "the link"}` }));
}
