/** Draws samples as small pictures. */

import { sizeOf, whatOf, white } from "../device/preparing.js";
import { h } from "./dom.js";

const LOUDEST = 200; // the log-mel feature that is shown as white

/** A picture of a raw sample; `name` describes it to screen readers. */
export function thumbnail(spec, raw, name) {
  if (whatOf(spec) === "numbers") return h("span", { class: "thumb numbers", role: "img", "aria-label": name }, Array.from(raw.slice(0, 3), (value) => Number(value).toPrecision(2)).join(" "));
  const canvas = h("canvas", { class: "thumb", role: "img", "aria-label": name });
  paintSample(canvas, spec, raw);
  return canvas;
}

/** Paints a raw sample (*shape): a picture as it is, a sound with time from left to right. */
export function paintSample(canvas, spec, raw) {
  const sound = whatOf(spec) === "sound";
  const [rows, columns] = spec.shape.slice(-2);
  Object.assign(canvas, sound ? { width: rows, height: columns } : { width: columns, height: rows });
  const paper = canvas.getContext("2d");
  const image = paper.createImageData(canvas.width, canvas.height);
  const planes = sizeOf(spec.shape) / (rows * columns);
  const most = sound ? LOUDEST : white(spec);
  for (let place = 0; place < rows * columns; place++) {
    const [row, column] = [Math.floor(place / columns), place % columns];
    const pixel = sound ? (columns - 1 - column) * rows + row : place;
    for (let c = 0; c < 3; c++) image.data[4 * pixel + c] = (255 * raw[Math.min(c, planes - 1) * rows * columns + place]) / most;
    image.data[4 * pixel + 3] = 255;
  }
  paper.putImageData(image, 0, 0);
}
