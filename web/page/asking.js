/** Asks the owner: for the device's name when it joins, and for confirmation before something is deleted. */

import { byId, say } from "./dom.js";
import { bytes } from "./format.js";
import { checkVersion, configuration, fetchAhead, join, suggestedName } from "./joining.js";
import { savesData } from "./work_rules.js";

/** Asks for confirmation; `yes` and `no` are the buttons' texts. @param {string} text @returns {Promise<boolean>} */
export function sure(text, yes = "Delete", no = "Keep") {
  const dialog = byId("sure");
  for (const [value, name] of Object.entries({ yes, no })) say(dialog.querySelector(`[value=${value}]`), name);
  byId("sure-text").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/**
 * Shows the form until the device has joined. Throws Error in plain words if nobody may join.
 * @param {import("./link.js").Link | null} link @param {(text: string) => void} trouble shows an error; empty: none
 * @returns {Promise<import("./joining.js").Joined>}
 */
export async function joinedBy(link, trouble) {
  const config = await configuration();
  checkVersion(config);
  if (config.enrolment === "link" && !link) {
    throw new Error("Open the link, or scan the code, that the organisers gave you: nobody can join without it.");
  }
  const form = byId("join");
  form.hidden = false;
  fetchAhead();
  byId("naming").hidden = config.enrolment === "link";
  byId("name").value = suggestedName(navigator.userAgent);
  say(byId("about"), config.tasks.map(({ name, title }) => (title && title !== name ? title : `Train a model together: ${name}`)).join(", "));
  say(byId("loads"), loads(config));
  say(byId("purpose"), purpose(config));
  return new Promise((resolve) => {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      trouble("");
      form.querySelector("button").disabled = true;
      try {
        resolve(await join(config, { name: byId("name").value, link }));
        form.hidden = true;
      } catch (error) {
        trouble(error.message);
      }
      form.querySelector("button").disabled = false;
    });
  });
}

/** What the tasks are for, and what people do in them, in lines. @param {import("./joining.js").Config} config */
function purpose({ tasks }) {
  const over = tasks.length > 0 && tasks.every((task) => task.over) ? "This task is over: nothing is left to do in it." : "";
  const lines = tasks.flatMap(({ name, title, about, ask }) => (tasks.length > 1 ? [about && `${title || name}: ${about}`] : [about, ask]));
  return [over, ...lines].filter(Boolean).join("\n");
}

/** How much comes at the first visit. @param {import("./joining.js").Config} config */
function loads({ page_bytes: page = 0, tasks }) {
  const model = Math.max(0, ...tasks.map(({ model_bytes: size }) => size ?? 0));
  const about = (/** @type {number} */ size) => bytes(Number(size.toPrecision(2)));
  const saving = savesData() ? " Your browser is set to save data: nothing is computed or sent until you switch that off." : "";
  if (!page) return saving.trim();
  return `It loads about ${about(page + model)}, once: this page, and ${model ? `a model of ${about(model)}` : "then the model"}.${saving}`;
}
