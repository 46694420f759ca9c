/** The pad for samples that are texts. */

import { h } from "./dom.js";

/** @param {any} spec of texts, with `texts` once the model is here @param {(raw: Int32Array | null) => void} changed @returns {import("./canvas.js").Pad} */
export function textPad({ texts }, changed) {
  const field = h("textarea", { id: "text", rows: 5, disabled: !texts });
  const clear = () => {
    field.value = "";
    changed(null);
  };
  field.addEventListener("input", () => changed(field.value.trim() ? texts.ids(field.value) : null));
  const element = h("div", { class: "pad" }, h("label", { for: "text" }, "A text"), field);
  const how = texts ? "Write a text, and choose its label. It stays in this browser." : "The model is on its way: then texts can be written here.";
  return { element, how, clear };
}
