// Sound: decodes RIFF WAVE, resamples it to 16 kHz, and computes log-mel features (models/data/sound.py). Samples are
// in units of 16-bit PCM: -32768 to 32767.

import { DataError } from "./errors.js";
import { isSound } from "./preparing.js";
import { whole } from "./rounding.js";

export const RATE = 16_000; // Hz
const FRAME = 512;
const HOP = 256;
const BANDS = 40;
const LOWEST_HZ = 20;
const HIGHEST_HZ = 7600;
const FLOOR = 1e-8;
const ZEROS = 16; // zero crossings of the sinc on each side
const SHARE = 0.95; // the share of the lower of the two bands that is kept
const KINDS = new Set(["1 8", "1 16", "1 24", "1 32", "3 32", "3 64"]);
const EXTENSIBLE = 0xfffe;

/** The number of samples at 16 kHz that so many frames take. */
export const samplesOf = (frames) => FRAME + (frames - 1) * HOP;

/**
 * Log-mel features of the beginning of a sound, resampled to 16 kHz and padded with silence.
 * @param {import("./preparing.js").InputSpec} spec an input (1, frames, 40) or (frames, 40)
 * @param {Float32Array} samples of one channel, -32768 to 32767
 * @param {number} rate Hz
 * @returns {Uint8Array} (frames, 40)
 */
export function soundRaw(spec, samples, rate) {
  if (!isSound(spec)) throw new DataError(`the task's input is no log-mel of ${BANDS} bands: it is (${spec.shape})`);
  const count = samplesOf(spec.shape[spec.shape.length - 2]);
  const clip = new Float32Array(count);
  clip.set(resampled(samples, rate, RATE, count));
  return logMel(clip);
}

/** Log-mel features (frames, 40) of samples (n,) at 16 kHz. @param {Float32Array} samples @returns {Uint8Array} */
export function logMel(samples) {
  const frames = Math.floor((samples.length - FRAME) / HOP) + 1;
  const bands = filters();
  const features = new Uint8Array(frames * BANDS);
  const [real, imaginary] = [new Float64Array(FRAME), new Float64Array(FRAME)];
  for (let frame = 0; frame < frames; frame++) {
    for (let i = 0; i < FRAME; i++) {
      const hann = 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / FRAME);
      real[i] = samples[frame * HOP + i] * (hann * (1 / 32768));
    }
    imaginary.fill(0);
    fourier(real, imaginary);
    bands.forEach((weights, band) => {
      let power = 0;
      for (let k = 0; k < weights.length; k++) {
        if (weights[k]) power += weights[k] * (real[k] * real[k] + imaginary[k] * imaginary[k]);
      }
      const level = 2 * (10 * Math.log10(Math.max(power, FLOOR)) + 80);
      features[frame * BANDS + band] = Math.min(255, Math.max(0, whole(level)));
    });
  }
  return features;
}

/** The weight of each of the 257 frequencies of the transform in each band. */
function filters() {
  const mel = (hertz) => 2595 * Math.log10(1 + hertz / 700);
  const hertz = (value) => 700 * (10 ** (value / 2595) - 1);
  const [lowest, highest] = [mel(LOWEST_HZ), mel(HIGHEST_HZ)];
  const corners = Array.from({ length: BANDS + 2 }, (_, i) => hertz(lowest + ((highest - lowest) * i) / (BANDS + 1)));
  return Array.from({ length: BANDS }, (_, band) => {
    const [low, middle, high] = corners.slice(band, band + 3);
    return Float64Array.from({ length: FRAME / 2 + 1 }, (_, k) => {
      const frequency = (k * RATE) / FRAME;
      return Math.max(0, Math.min((frequency - low) / (middle - low), (high - frequency) / (high - middle)));
    });
  });
}

/** The Fourier transform in place; the length is a power of two (Cooley and Tukey, radix 2). */
export function fourier(real, imaginary) {
  const n = real.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [real[i], real[j]] = [real[j], real[i]];
      [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
    }
  }
  for (let size = 2; size <= n; size *= 2) {
    for (let k = 0; k < size / 2; k++) {
      const [c, s] = [Math.cos((-2 * Math.PI * k) / size), Math.sin((-2 * Math.PI * k) / size)];
      for (let i = k; i < n; i += size) {
        const j = i + size / 2;
        const [x, y] = [real[j] * c - imaginary[j] * s, real[j] * s + imaginary[j] * c];
        [real[j], imaginary[j]] = [real[i] - x, imaginary[i] - y];
        [real[i], imaginary[i]] = [real[i] + x, imaginary[i] + y];
      }
    }
  }
}

/**
 * Resamples from `rate` to `wanted` by a windowed sinc: the first `count` samples, or fewer if the sound is shorter.
 * The sound is taken to be zero before and after.
 * @param {Float32Array} samples (n,) at `rate`
 * @returns {Float32Array}
 */
export function resampled(samples, rate, target, count) {
  const size = Math.min(count, Math.ceil((samples.length * target) / rate));
  if (rate === target) return samples.slice(0, size);
  const width = SHARE * Math.min(1, target / rate);
  const reach = Math.ceil(ZEROS / width);
  const phases = new Map();
  const output = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    const nearest = Math.floor((i * rate + Math.floor(target / 2)) / target);
    const phase = i * rate - nearest * target;
    if (!phases.has(phase)) phases.set(phase, sinc(phase / target, width, reach));
    let sum = 0;
    phases.get(phase).forEach((weight, place) => (sum += weight * (samples[nearest + place - reach] ?? 0)));
    output[i] = sum;
  }
  return output;
}

function sinc(phase, width, reach) {
  return Float64Array.from({ length: 2 * reach + 1 }, (_, place) => {
    const away = phase - (place - reach);
    const x = Math.PI * width * away;
    const window = Math.cos((Math.PI / 2) * Math.min(1, Math.max(-1, away / (reach + 1)))) ** 2;
    return width * (x === 0 ? 1 : Math.sin(x) / x) * window;
  });
}

/**
 * Decodes a RIFF WAVE file: PCM of 8, 16, 24 and 32 bits, float of 32 and 64; gives the mean of its channels.
 * @param {Uint8Array} data
 * @returns {{samples: Float32Array, rate: number}} @throws DataError
 */
export function readWav(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const word = (at) => String.fromCharCode(...data.subarray(at, at + 4));
  if (data.length < 12 || word(0) !== "RIFF" || word(8) !== "WAVE") throw new DataError("no RIFF WAVE file");
  let form = null;
  for (let at = 12; at + 8 <= data.length; ) {
    const size = view.getUint32(at + 4, true);
    if (word(at) === "fmt " && at + 24 <= data.length) form = formOf(view, at + 8);
    if (word(at) === "data") return { samples: mixed(view, at + 8, size, form), rate: form.rate };
    at += 8 + size + (size % 2);
  }
  throw new DataError("a sound that ends too early");
}

function formOf(view, at) {
  const tag = view.getUint16(at, true);
  const kind = tag === EXTENSIBLE && at + 26 <= view.byteLength ? view.getUint16(at + 24, true) : tag;
  const form = { kind, channels: view.getUint16(at + 2, true), rate: view.getUint32(at + 4, true), bits: view.getUint16(at + 14, true) };
  if (!KINDS.has(`${form.kind} ${form.bits}`) || !(form.channels > 0 && form.channels <= 16)) {
    throw new DataError(`a sound that is not read: WAVE format ${kind}, ${form.bits} bits, ${form.channels} channels`);
  }
  if (form.rate < 4000 || form.rate > 384_000) throw new DataError(`a sound of ${form.rate} Hz, expected 4000 to 384000`);
  return form;
}

function mixed(view, at, size, form) {
  if (form === null) throw new DataError("a damaged sound: WAVE without its format");
  const width = form.bits / 8;
  const frame = width * form.channels;
  const frames = Math.floor(Math.min(size, view.byteLength - at) / frame);
  if (frames === 0) throw new DataError("a sound without samples");
  const mono = new Float32Array(frames);
  for (let i = 0; i < frames; i++) {
    let sum = 0;
    for (let c = 0; c < form.channels; c++) sum += valueOf(view, at + i * frame + c * width, form);
    mono[i] = sum / form.channels;
  }
  if (!mono.every(Number.isFinite)) throw new DataError("a sound whose values are not finite");
  return mono;
}

/** One value in units of 16-bit PCM. */
function valueOf(view, at, { kind, bits }) {
  if (kind === 3) return 32768 * (bits === 32 ? view.getFloat32(at, true) : view.getFloat64(at, true));
  if (bits === 8) return (view.getUint8(at) - 128) * 256;
  if (bits === 16) return view.getInt16(at, true);
  if (bits === 32) return view.getInt32(at, true) / 65536;
  return ((view.getUint16(at, true) << 8) | (view.getInt8(at + 2) << 24)) / 65536;
}
