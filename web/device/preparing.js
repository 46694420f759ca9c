// Prepares pictures and raw values for a bundle's input (`input` in manifest.json), as models/bundles/inputs.py and
// models/data/pictures.py do. "Raw" values are those before scale, mean and std.

import { DataError } from "./errors.js";
import { sizeOf } from "./flat.js";
import { checkIds } from "./manifest.js";
import { resized } from "./resizing.js";
import { whole } from "./rounding.js";

export { sizeOf };

const BANDS = 40;
const BYTE = 255;
const GREY = [0.299, 0.587, 0.114].map(Math.fround); // ITU-R 601

/**
 * @typedef {{shape: number[], scale: number, mean: number[], std: number[], dtype: string,
 *   vocabulary?: number | null, window?: {step: number, columns: string[], rate?: number},
 *   text?: any,
 *   texts?: import("./tokenizer.js").Texts}} InputSpec `texts`: makes ids of texts, once the tokenizer is here
 * @typedef {{pixels: ArrayLike<number>, height: number, width: number, channels: number}} Picture
 *   pixels (height, width, channels), black 0, white 255; 1 or 3 channels
 */

/** Whether the input is log-mel features: frames of 40 bands, perhaps with one channel. @param {InputSpec} spec */
export function isSound(spec) {
  const shape = spec.shape.length === 3 ? spec.shape : [1, ...spec.shape];
  return isNumbers(spec) && !spec.window && shape.length === 3 && shape[0] === 1 && shape[2] === BANDS;
}

/** Whether the input is a picture: one or three channels, and two more axes. @param {InputSpec} spec */
export function isPicture(spec) {
  return isNumbers(spec) && spec.shape.length === 3 && [1, 3].includes(spec.shape[0]);
}

const isNumbers = (spec) => spec.vocabulary === null || spec.vocabulary === undefined;

/** The sort of a task's samples. @param {InputSpec} spec @returns {"sound" | "picture" | "numbers" | "text" | "windows"} */
export function whatOf(spec) {
  if (!isNumbers(spec)) return "text";
  if (spec.window) return "windows";
  if (isSound(spec)) return "sound";
  return isPicture(spec) ? "picture" : "numbers";
}

/** The raw value of white: the whole number that `scale` maps to 1; 255 if there is none. @param {InputSpec} spec */
export function white(spec) {
  if (!(spec.scale > 0 && spec.scale < 1) || Math.max(...spec.mean) >= 1) return BYTE;
  const steps = 1 / spec.scale;
  return Math.abs(steps - whole(steps)) < 1e-3 * steps ? whole(steps) : BYTE;
}

/** Whether the task's pictures have light objects on a dark ground. @param {InputSpec} spec */
export const isLightOnDark = (spec) => spec.mean[0] / (spec.scale * white(spec)) < 0.5;

/**
 * The raw values of one picture.
 * @param {InputSpec} spec
 * @param {Picture} picture
 * @returns {Uint8Array | Float32Array} shape (channels, height, width); Uint8Array where white is 255
 */
export function pictureRaw(spec, picture) {
  if (!isPicture(spec)) throw new DataError(`the task's input is no picture: it is (${spec.shape})`);
  const [channels, height, width] = spec.shape;
  const pixels = resized(picture.pixels, picture, height, width);
  const scale = Math.fround(white(spec) / BYTE);
  const raw = new Float32Array(channels * height * width);
  for (let place = 0; place < height * width; place++) {
    for (let c = 0; c < channels; c++) {
      raw[c * height * width + place] = Math.fround(channelOf(pixels, picture.channels, place, c, channels) * scale);
    }
  }
  return white(spec) === BYTE ? Uint8Array.from(raw, whole) : raw;
}

function channelOf(pixels, from, place, c, to) {
  if (from === 3 && to === 1) return GREY.reduce((all, part, i) => all + part * pixels[3 * place + i], 0);
  return pixels[from * place + (from === 1 ? 0 : c)];
}

/**
 * (raw * scale - mean) / std, each step rounded to float32; of token ids the ids.
 * @param {InputSpec} spec
 * @param {ArrayLike<number>} raw (n, *shape)
 * @returns {Float32Array | Int32Array} a new array. Throws TensorError for an id that is not in the vocabulary.
 */
export function prepare(spec, raw) {
  const size = sizeOf(spec.shape);
  if (raw.length % size) throw new DataError(`input has ${raw.length} values, expected n x (${spec.shape})`);
  if (!isNumbers(spec)) {
    checkIds(/** @type {any} */ (spec), raw);
    return Int32Array.from(raw);
  }
  const plane = size / spec.shape[0];
  const scale = Math.fround(spec.scale);
  const [mean, std] = [spec.mean, spec.std].map((values) => values.map(Math.fround));
  const x = new Float32Array(raw.length);
  for (let i = 0; i < x.length; i++) {
    const channel = Math.floor((i % size) / plane);
    const scaled = Math.fround(Math.fround(raw[i]) * scale);
    x[i] = Math.fround(scaled - (mean[channel] ?? mean[0])) / (std[channel] ?? std[0]);
  }
  return x;
}
