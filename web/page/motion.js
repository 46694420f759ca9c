/** The pad that records motion: windows of an accelerometer's readings. */

import { MotionRecording, axesOf, unitOf } from "../device/motion.js";
import { CaptureError } from "./capture.js";
import { h } from "./dom.js";
import { plural, seconds } from "./format.js";
import { paintSample } from "./thumbnail.js";

/** Milliseconds without a reading after which a device has no sensor, and after which a recording ends by itself. */
const [SILENT_MS, LONGEST_MS] = [2_000, 60_000];

/**
 * @param {import("../device/preparing.js").InputSpec} spec of windows; throws DataError if the sensor does not fit it
 * @param {(raw: Float32Array | null) => void} changed
 * @param {(text: string) => void} trouble
 * @returns {import("./canvas.js").Pad}
 */
export function motionPad(spec, changed, trouble) {
  const [, length] = spec.shape;
  const { rate } = spec.window;
  const names = axesOf(spec).join(", ");
  const span = rate ? `${seconds(length / rate)} of motion` : `${length} readings`;
  const canvas = h("canvas", { class: "paper motion", width: 1, height: 1, role: "img", "aria-label": "The last recording, a line for each axis" });
  const button = h("button", { type: "button", class: "main" }, "Record");
  const status = h("span", { role: "status", class: "quiet" });
  const sensor = new MotionSensor(spec, {
    heard: ({ count }) => (status.textContent = `Recording: ${plural(count, "sample")} so far`),
    ended: (recording, why) => {
      button.textContent = "Record";
      const measured = `${Math.round(recording.perSecond)} readings a second`;
      if (why || recording.isSlow) trouble(why || `This device gives only ${measured}, and the task is of ${rate}: values between are estimated.`);
      const raw = recording.windows();
      const came = recording.perSecond ? ` This device gives ${measured}.` : "";
      status.textContent = recording.count ? `${plural(recording.count, "sample")} recorded.${rate ? "" : came}` : why ? "" : `Too short: a sample is ${span}. Record a little longer.`;
      if (recording.count) paintSample(canvas, spec, raw.subarray(raw.length - raw.length / recording.count));
      changed(recording.count ? raw : null);
    },
  });
  const clear = () => {
    canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    status.textContent = "";
    changed(null);
  };
  button.addEventListener("click", async () => {
    if (sensor.isOpen) return sensor.close();
    trouble("");
    clear();
    try {
      await sensor.open();
      button.textContent = "Stop";
    } catch (error) {
      trouble(error.message);
    }
  });
  const element = h("div", { class: "pad" }, canvas, h("div", { class: "row" }, button, status));
  const pace = rate ? `${rate} a second` : "how many a second, the task does not say";
  const how = `Press Record, move as the label says, and press Stop. Each ${length} readings of ${names} (${unitOf(spec)}, with gravity; ${pace}) are a sample.`;
  return { element, how, clear, close: () => sensor.close() };
}

/** Listens to the motion sensor, between `open` and `close`; ends by itself when the page is hidden. */
class MotionSensor {
  /**
   * @param {import("../device/preparing.js").InputSpec} spec
   * @param {{heard: (recording: MotionRecording) => void, ended: (recording: MotionRecording, why: string) => void}} listener
   */
  constructor(spec, listener) {
    this._spec = spec;
    this._listener = listener;
    /** @type {MotionRecording | null} */
    this._recording = null;
    this._onReading = (/** @type {any} */ event) => this._take(event.accelerationIncludingGravity, event.timeStamp / 1e3);
    this._onHidden = () => document.hidden && this.close("The recording ended: the page was hidden.");
  }

  get isOpen() {
    return this._recording !== null;
  }

  /** Asks for permission where the browser wants that, and listens. Rejects with CaptureError. */
  async open() {
    const { DeviceMotionEvent: Motion } = /** @type {any} */ (globalThis);
    if (!Motion) throw new CaptureError("This browser reads no motion sensor. Files can be chosen without it.");
    const answer = (await Motion.requestPermission?.().catch(() => "denied")) ?? "granted";
    if (answer !== "granted") {
      throw new CaptureError("This page may not read the motion sensor: allow it in the browser's settings of this site. Files can be chosen without it.");
    }
    this._recording = new MotionRecording(this._spec);
    addEventListener("devicemotion", this._onReading);
    document.addEventListener("visibilitychange", this._onHidden);
    this._silent = setTimeout(() => this.close("This device gives no readings of motion: it may have no such sensor. Files can be chosen without it."), SILENT_MS);
    this._end = setTimeout(() => this.close(), LONGEST_MS);
  }

  /** Ends the recording. @param {string} [why] empty: its owner ended it */
  close(why = "") {
    const recording = this._recording;
    if (!recording) return;
    this._recording = null;
    removeEventListener("devicemotion", this._onReading);
    document.removeEventListener("visibilitychange", this._onHidden);
    clearTimeout(this._silent);
    clearTimeout(this._end);
    this._listener.ended(recording, why);
  }

  /** @param {{x: number | null, y: number | null, z: number | null} | null} reading @param {number} atS */
  _take(reading, atS) {
    if (reading?.x == null || reading.y == null || reading.z == null || !this._recording) return;
    clearTimeout(this._silent);
    this._recording.add(/** @type {import("../device/motion.js").Reading} */ ({ x: reading.x, y: reading.y, z: reading.z }), atS);
    this._listener.heard(this._recording);
  }
}
