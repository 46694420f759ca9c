/** The section in which samples are made: a pad, and a button for each label, which shows the model's guess. */

import { prepare, sizeOf, whatOf } from "../device/preparing.js";
import { drawingPad } from "./canvas.js";
import { byId, h, say } from "./dom.js";
import { filesForm } from "./files.js";
import { percent, plural } from "./format.js";
import { motionPad } from "./motion.js";
import { numbersPad } from "./numbers.js";
import { cameraPad } from "./pictures.js";
import { recordingPad } from "./recorder.js";
import { textPad } from "./texts.js";

/**
 * @typedef {{samples: import("../device/samples.js").Samples, spec: import("../device/preparing.js").InputSpec,
 *   guess: (x: Float32Array) => Promise<number[] | null>, changed: () => void, trouble: (text: string) => void}} Lesson
 */
export class Teaching {
  /** @param {Lesson} lesson */
  constructor(lesson) {
    this._lesson = lesson;
    this._raw = null;
    this._pad = padOf(lesson.spec, (raw) => this._taken(raw), lesson.trouble);
    this._buttons = lesson.samples.labels.map((label) => labelButton(label, () => this._keep(label)));
    byId("teach").hidden = false;
    say(byId("teach-how"), this._pad?.how ?? "This task takes token ids without a tokenizer, which this page cannot make.");
    byId("pad").replaceChildren(...(this._pad ? [this._pad.element] : []));
    byId("labels").classList.toggle("short", lesson.samples.labels.every((label) => label.length <= 2));
    byId("labels").replaceChildren(...(this._pad ? this._buttons : []));
    byId("files").hidden = whatOf(lesson.spec) === "text";
    if (!byId("files").hidden) byId("files-form").replaceChildren(filesForm(lesson.samples, lesson.spec, lesson.changed));
    this._taken(null);
  }

  /** Switches camera and microphone off. */
  close() {
    this._pad?.close?.();
  }

  /** Ask for a guess again, because the model has changed. */
  async again() {
    if (this._raw) await this._guess(this._raw);
  }

  async _taken(raw) {
    this._raw = raw;
    for (const button of this._buttons) button.disabled = raw === null;
    if (raw) await this._guess(raw);
    else this._show(null);
  }

  async _guess(raw) {
    const first = raw.subarray(0, sizeOf(this._lesson.spec.shape));
    const shares = await this._lesson.guess(prepare(this._lesson.spec, first));
    if (this._raw === raw) this._show(shares);
  }

  /** @param {number[] | null} shares */
  _show(shares) {
    const best = shares ? shares.indexOf(Math.max(...shares)) : -1;
    this._buttons.forEach((button, i) => {
      button.classList.toggle("best", i === best);
      button.querySelector("meter").value = shares ? shares[i] : 0;
      say(button.querySelector(".share"), shares ? percent(shares[i]) : "");
    });
    const label = this._lesson.samples.labels[best];
    say(byId("guess"), shares ? `It takes this for “${label}” (${percent(shares[best])}).` : "");
  }

  async _keep(label) {
    const raw = this._raw;
    if (raw === null) return;
    this._raw = null; // a second press must not store it again
    try {
      await this._lesson.samples.add(label, raw, Date.now());
      const count = raw.length / sizeOf(this._lesson.spec.shape);
      say(byId("kept"), `${count > 1 ? `${plural(count, "sample")} kept` : "Kept"} as “${label}”, on this device only.`);
      this._pad.clear();
      this._lesson.changed();
    } catch (error) {
      this._raw = raw;
      this._lesson.trouble(error.message);
    }
  }
}

function padOf(spec, listener, trouble) {
  const what = whatOf(spec);
  if (what === "sound") return recordingPad(spec, listener, trouble);
  if (what === "numbers") return numbersPad(spec, listener);
  if (what === "windows") return windowsPad(spec, listener, trouble);
  if (what === "text" && spec.text) return textPad(spec, listener);
  if (what === "picture") return spec.shape[0] === 1 ? drawingPad(spec, listener) : cameraPad(spec, listener, trouble);
  return null;
}

/** A pad for windows of readings: the motion sensor where it measures them, else a row of numbers that says why. */
function windowsPad(spec, listener, trouble) {
  try {
    return motionPad(spec, listener, trouble);
  } catch (error) {
    return { ...numbersPad(spec, listener), how: `${error.message}. Type the numbers, one channel after the other, or choose files.` };
  }
}

function labelButton(label, keep) {
  const meter = h("meter", { max: 1, value: 0, "aria-hidden": "true" });
  return h("button", { type: "button", class: "label", disabled: true, click: keep }, h("span", { class: "word" }, label), h("span", { class: "share" }), meter);
}
