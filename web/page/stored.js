/** The section that shows the samples that are stored here, and deletes them. */

import { byId, h, say } from "./dom.js";
import { plural } from "./format.js";
import { thumbnail } from "./thumbnail.js";

const SHOWN = 8;

/**
 * @param {import("../device/samples.js").Samples} samples
 * @param {import("../device/preparing.js").InputSpec} spec
 * @param {{removed: () => void, sure: (text: string) => Promise<boolean>, trouble: (text: string) => void}} listener
 */
export function showStored(samples, spec, listener) {
  const counts = samples.counts();
  const total = counts.reduce((all, { training, held: holdout }) => all + training + holdout, 0);
  const keptOut = counts.reduce((all, group) => all + group.held, 0);
  byId("stored").hidden = false;
  byId("clear").hidden = total === 0;
  say(byId("totals"), total ? `${plural(total, "sample")}, ${keptOut} of them kept out of training. They never leave this browser.` : "Nothing is stored yet.");
  const filled = counts.filter((group) => group.training + group.held);
  byId("folders").replaceChildren(...filled.map((count) => folder(samples, spec, count, listener)));
}

function folder(samples, spec, { label, training, held: holdout }, listener) {
  const all = samples.list(label);
  const drop = async (id, place) => {
    if (await deleting(() => samples.remove(id), listener)) focusOn(`.drop[data-label="${CSS.escape(label)}"]`, place);
  };
  const clear = async (event) => {
    const place = [...byId("folders").children].indexOf(event.target.closest("#folders > li"));
    if (!(await listener.sure(`Delete all ${plural(all.length, "sample")} of “${label}”?`))) return;
    if (await deleting(() => samples.clear(label), listener)) focusOn(".folder button", place);
  };
  const thumbs = all.slice(0, SHOWN).map(({ id, held: out }, i) => {
    const name = `${label}, ${i + 1} of ${all.length}${out ? ", kept out of training" : ""}`;
    const button = h("button", { type: "button", class: "drop", "data-label": label, title: `Delete ${name}`, "aria-label": `Delete ${name}`, click: () => drop(id, i) }, h("span", {}, "×"));
    return h("li", { class: out ? "out" : null }, thumbnail(spec, samples.raw(id), name), button);
  });
  const more = all.length > SHOWN ? h("li", { class: "quiet" }, `and ${all.length - SHOWN} more`) : null;
  return h(
    "li",
    {},
    h("div", { class: "folder" }, h("h3", {}, label), h("span", { class: "quiet" }, `${training} to train on, ${holdout} kept out`), h("button", { type: "button", click: clear, "aria-label": `Delete all of ${label}` }, "Delete all")),
    h("ul", { class: "thumbs", "aria-label": `Samples of ${label}` }, ...thumbs, more),
  );
}

/** Focuses the element that took the place of a deleted one, so that keyboard users stay there; else the heading. */
function focusOn(selector, place) {
  const all = byId("folders").querySelectorAll(selector);
  (all[Math.min(place, all.length - 1)] ?? byId("stored-head")).focus();
}

/**
 * Deletes samples, one deletion at a time: after each, samples have other ids, and are shown anew.
 * @returns {Promise<boolean>} whether it succeeded
 */
async function deleting(deed, { removed, trouble }) {
  byId("folders").inert = true;
  let wrong = "";
  await deed().catch((error) => (wrong = error.message));
  removed(); // also if only some were deleted
  byId("folders").inert = false;
  if (wrong) trouble(wrong);
  return !wrong;
}
