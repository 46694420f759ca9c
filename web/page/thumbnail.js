/** Draws samples as small pictures. */

import { sizeOf, whatOf, white } from "../device/preparing.js";
import { h } from "./dom.js";

/** Colours of the channels of windows. */
const COLOURS = ["#2f81f7", "#d9730d", "#2da44e"];
const LOUDEST = 200; // the log-mel feature that is shown as white

/** A picture of a raw sample; `name` describes it to screen readers. */
export function thumbnail(spec, raw, name) {
  if (whatOf(spec) === "numbers") return h("span", { class: "thumb numbers", role: "img", "aria-label": name }, Array.from(raw.slice(0, 3), (value) => Number(value).toPrecision(2)).join(" "));
  if (whatOf(spec) === "text") return h("span", { class: "thumb text", role: "img", "aria-label": name }, spec.texts?.text(raw) ?? "a text");
  const canvas = h("canvas", { class: "thumb", role: "img", "aria-label": name });
  paintSample(canvas, spec, raw);
  return canvas;
}

/** Paints a raw sample (*shape): a picture as it is, a sound with time from left to right. */
export function paintSample(canvas, spec, raw) {
  if (whatOf(spec) === "windows") return paintWindow(canvas, spec, raw);
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
  return paper.putImageData(image, 0, 0);
}

/** Paints a window, (channels, length), as a line for each channel, with time from left to right. */
function paintWindow(canvas, { shape: [channels, length] }, raw) {
  const [width, height] = [240, 120];
  Object.assign(canvas, { width, height });
  const paper = canvas.getContext("2d");
  const [least, most] = [Math.min(...raw), Math.max(...raw)];
  for (let channel = 0; channel < channels; channel++) {
    paper.beginPath();
    for (let step = 0; step < length; step++) {
      const share = (raw[channel * length + step] - least) / (most - least || 1);
      paper.lineTo((width * step) / Math.max(1, length - 1), height - 4 - (height - 8) * share);
    }
    Object.assign(paper, { strokeStyle: COLOURS[channel % COLOURS.length], lineWidth: 3 });
    paper.stroke();
  }
}
