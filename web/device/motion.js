/** Cuts the readings of an accelerometer into windows for a model's input (models/data/row_reader.py, WindowCutter). */

import { DataError } from "./errors.js";

/** @typedef {{x: number, y: number, z: number}} Reading m/s², with gravity, as a browser gives it */

const AXES = ["x", "y", "z"];
/** m/s² of one g. */
const GRAVITY = 9.80665;
/** The mean strength of readings with gravity, by which those in g are known, from and to. */
const IN_G = [0.7, 2.5];
/** A name of an axis of an accelerometer: x, acc_x, accel-x, acceleration x, ax, .. */
const AXIS = /^(?:a|acc(?:el(?:eration|erometer)?)?|body_?acc|total_?acc)?[ _.-]*([xyz])(?:[ _.-]*axis)?$/i;

/**
 * The axis of each channel of a task's windows. Throws DataError, in words, if an accelerometer does not measure them.
 * @param {any} spec the task's input, with `window` @returns {("x" | "y" | "z")[]}
 */
export function axesOf({ shape: [channels], window: { columns = [] } }) {
  if (!columns.length && channels !== AXES.length) {
    throw new DataError(`This task takes readings of ${channels} channels, and the motion sensor of a phone has 3 (x, y, z)`);
  }
  const axes = columns.length ? columns.map((/** @type {string} */ name) => AXIS.exec(name)?.[1].toLowerCase()) : AXES;
  if (axes.includes(undefined) || new Set(axes).size < axes.length) {
    throw new DataError(`This task takes readings of ${columns.join(", ")}, which the motion sensor of a phone does not give`);
  }
  return axes;
}

/** The unit of a task's readings: g if its mean and spread are those of readings in g, else m/s². @param {any} spec */
export function unitOf({ scale, mean, std }) {
  const isPlain = scale === 1 && mean.every((/** @type {number} */ value) => value === 0) && std.every((/** @type {number} */ value) => value === 1);
  const power = AXES.map((_, i) => (mean[i] ?? mean[0]) ** 2 + (std[i] ?? std[0]) ** 2);
  const strength = Math.sqrt(power.reduce((sum, value) => sum + value, 0)) / Math.abs(scale);
  return !isPlain && strength >= IN_G[0] && strength <= IN_G[1] ? "g" : "m/s²";
}

/**
 * A recording, of which each whole window is a sample. Windows do not overlap, so that each may be held out alone. If the
 * task says its rate, they are at this rate: values between readings are interpolated linearly. Else each reading is a
 * time step.
 */
export class MotionRecording {
  /** @param {any} spec the task's input; throws DataError as `axesOf` */
  constructor(spec) {
    this._axes = axesOf(spec);
    this._length = spec.shape[1];
    this._divisor = unitOf(spec) === "g" ? GRAVITY : 1;
    /** Time steps a second; undefined: the task does not say. @type {number | undefined} */
    this._rate = spec.window.rate;
    /** @type {Reading[]} */
    this._readings = [];
    /** @type {number[]} */
    this._times = [];
  }

  /** @param {Reading} reading @param {number} atS when it was measured, in seconds, on any clock */
  add(reading, atS) {
    if (this._rate && this._times.length && !(atS > this._times[this._times.length - 1])) return;
    this._readings.push(reading);
    this._times.push(atS);
  }

  /** The readings a second that came; 0 if that is not known. */
  get perSecond() {
    const tookS = this.#tookS;
    return tookS > 0 ? (this._times.length - 1) / tookS : 0;
  }

  /** Whether fewer readings came than the task takes, by more than a tenth, so that many values are interpolated. */
  get isSlow() {
    return this._rate !== undefined && this.perSecond > 0 && this.perSecond < 0.9 * this._rate;
  }

  get #tookS() {
    return this._times.length ? this._times[this._times.length - 1] - this._times[0] : 0;
  }

  get #steps() {
    if (!this._rate || !this._times.length) return this._readings.length;
    return Math.floor(this.#tookS * this._rate + 1e-6) + 1;
  }

  /** How many whole windows there are. */
  get count() {
    return Math.floor(this.#steps / this._length);
  }

  /** The readings of the first `steps` time steps. @param {number} steps @returns {Reading[]} */
  #atRate(steps) {
    const [rate, times, readings] = [this._rate, this._times, this._readings];
    if (!rate) return readings;
    let next = 1;
    return Array.from({ length: steps }, (_, step) => {
      const atS = times[0] + step / rate;
      while (next < times.length - 1 && times[next] < atS) next += 1;
      const [from, to] = [readings[next - 1], readings[next] ?? readings[next - 1]];
      const share = next < times.length ? Math.min(1, (atS - times[next - 1]) / (times[next] - times[next - 1])) : 0;
      const between = (/** @type {"x" | "y" | "z"} */ axis) => from[axis] + share * (to[axis] - from[axis]);
      return { x: between("x"), y: between("y"), z: between("z") };
    });
  }

  /** The whole windows, (n, channels, length). */
  windows() {
    const channels = this._axes.length;
    const raw = new Float32Array(this.count * channels * this._length);
    const readings = this.#atRate(this.count * this._length);
    for (let i = 0; i < this.count * this._length; i++) {
      const [place, step] = [Math.floor(i / this._length), i % this._length];
      this._axes.forEach((axis, channel) => {
        raw[(place * channels + channel) * this._length + step] = readings[i][axis] / this._divisor;
      });
    }
    return raw;
  }
}
