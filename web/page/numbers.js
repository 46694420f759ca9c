/** The pad for samples that are rows of numbers. */

import { sizeOf } from "../device/preparing.js";
import { h } from "./dom.js";

/**
 * @param {import("../device/preparing.js").InputSpec} spec
 * @param {(raw: Float32Array | null) => void} changed
 * @returns {import("./canvas.js").Pad}
 */
export function numbersPad(spec, changed) {
  const size = sizeOf(spec.shape);
  const field = h("textarea", { id: "numbers", rows: 4, spellcheck: "false" });
  const status = h("p", { class: "quiet", role: "status" });
  const clear = () => {
    field.value = status.textContent = "";
    changed(null);
  };
  field.addEventListener("input", () => {
    const values = field.value.split(/[\s,;]+/).filter(Boolean).map(Number);
    const whole = values.length === size && values.every(Number.isFinite);
    status.textContent = whole || !values.length ? "" : `${values.length} of ${size} numbers`;
    changed(whole ? Float32Array.from(values) : null);
  });
  const element = h("div", { class: "pad" }, h("label", { for: "numbers" }, `${size} numbers, with spaces or commas between them`), field, status);
  return { element, how: "Type the numbers of one sample, and choose its label.", clear };
}
