/** Asks the owner: for the device's name when it joins, and for confirmation before something is deleted. */

import { byId, say } from "./dom.js";
import { checkVersion, configuration, fetchAhead, join, suggestedName } from "./joining.js";

/** Asks for confirmation before something is deleted. @param {string} text @returns {Promise<boolean>} */
export function sure(text) {
  const dialog = byId("sure");
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
  say(byId("about"), config.tasks.map(({ name, title }) => title || name).join(", "));
  say(byId("purpose"), config.tasks.map(({ about }) => about).filter(Boolean).join(" "));
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
