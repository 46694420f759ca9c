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

/** A recording, of which each whole window is a sample. Windows do not overlap, so that each may be held out alone. */
export class MotionRecording {
  /** @param {any} spec the task's input; throws DataError as `axesOf` */
  constructor(spec) {
    this._axes = axesOf(spec);
    this._length = spec.shape[1];
    this._divisor = unitOf(spec) === "g" ? GRAVITY : 1;
    /** @type {Reading[]} */
    this._readings = [];
  }

  /** @param {Reading} reading */
  add(reading) {
    this._readings.push(reading);
  }

  /** How many whole windows there are. */
  get count() {
    return Math.floor(this._readings.length / this._length);
  }

  /** The whole windows, (n, channels, length). */
  windows() {
    const channels = this._axes.length;
    const raw = new Float32Array(this.count * channels * this._length);
    for (let i = 0; i < this.count * this._length; i++) {
      const [place, step] = [Math.floor(i / this._length), i % this._length];
      this._axes.forEach((axis, channel) => {
        raw[(place * channels + channel) * this._length + step] = this._readings[i][axis] / this._divisor;
      });
    }
    return raw;
  }
}
