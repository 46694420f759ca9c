/** The pad that records a word or another sound, and shows the features that the model gets. */

import { KeywordCapture } from "../device/keyword_capture.js";
import { isSound } from "../device/preparing.js";
import { RATE, readWav, samplesOf, soundRaw } from "../device/sounds.js";
import { Capture, CaptureError } from "./capture.js";
import { h } from "./dom.js";
import { paintSample } from "./thumbnail.js";

const SILENT_MS = 5000; // after so long without a message, the audio thread does not run
const SAID = {
  "": "Recorded.",
  nothing: "Nothing at all was heard: is the microphone switched off?",
  quiet: "It was quiet. Keep it if you meant to record silence; otherwise record again, from nearer.",
  loud: "It was too loud for the microphone: record again, from farther away.",
};

/**
 * @param {import("../device/preparing.js").InputSpec} spec of a sound
 * @param {(raw: Uint8Array | null) => void} changed
 * @param {(text: string) => void} trouble
 * @returns {import("./canvas.js").Pad}
 */
export function recordingPad(spec, changed, trouble) {
  if (!isSound(spec)) throw new TypeError(`no sound: (${spec.shape})`);
  const seconds = samplesOf(spec.shape.at(-2)) / RATE;
  const canvas = h("canvas", { class: "paper sound", width: 1, height: 1, role: "img", "aria-label": "The recording, low tones below" });
  const button = h("button", { type: "button", class: "main" }, "Record");
  const status = h("span", { role: "status", class: "quiet" });
  const level = h("meter", { class: "level", max: 1, value: 0, "aria-hidden": "true" });
  const left = h("progress", { class: "level", max: 1, value: 0, "aria-hidden": "true" });
  const meters = h("div", { hidden: true }, level, left);
  const recorder = new Recorder(seconds, (keyword) => {
    meters.hidden = false;
    level.value = keyword.level;
    left.value = keyword.begun ? 0 : 1 - keyword.waited;
    status.textContent = keyword.begun ? "Listening …" : "Speak now …";
  });
  const clear = () => {
    canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    changed(null);
  };
  button.addEventListener("click", async () => {
    button.disabled = true;
    trouble("");
    try {
      const recording = await recorder.record();
      status.textContent = recording ? SAID[recording.fault] : "";
      if (recording) {
        const raw = soundRaw(spec, recording.samples, recording.rate);
        paintSample(canvas, spec, raw);
        changed(raw);
      }
    } catch (error) {
      status.textContent = "";
      trouble(error.message);
    }
    meters.hidden = true;
    button.disabled = false;
  });
  const element = h("div", { class: "pad" }, canvas, h("div", { class: "row" }, button, status), meters);
  const how = `Press Record, and say the word: the ${seconds.toFixed(0)} second around it is kept. Then choose its label.`;
  return { element, how, clear, close: () => recorder.stop() };
}

/** @typedef {import("../device/keyword_capture.js").Heard & {rate: number}} Recorded rate in Hz */

/** Records until a word was said. */
class Recorder {
  /** @param {number} seconds to keep @param {(keyword: KeywordCapture) => void} listening called while it listens */
  constructor(seconds, listening) {
    this._seconds = seconds;
    this._listening = listening;
    this._stopped = (/** @type {string} */ _why) => {};
    this._capture = new Capture("microphone", (why) => this._stopped(why));
  }

  /** @returns {Promise<Recorded | null>} null: stopped. Rejects with CaptureError. */
  async record() {
    const context = new AudioContext(); // before any `await`: some browsers allow it only during the user's click
    const stopped = new Promise((resolve, reject) => {
      this._stopped = (why) => (why ? reject(new CaptureError(why)) : resolve(null));
    });
    try {
      return await Promise.race([stopped, this._recorded(context)]);
    } finally {
      this._capture.close();
      await context.close();
    }
  }

  stop() {
    this._stopped("");
  }

  /** @param {AudioContext} context @returns {Promise<Recorded | null>} */
  async _recorded(context) {
    const stream = await this._capture.open();
    if (!stream) return null;
    await context.audioWorklet.addModule(new URL("microphone.js", import.meta.url));
    await context.resume();
    const keyword = new KeywordCapture(this._seconds, context.sampleRate);
    await this._heard(context, stream, keyword);
    return { ...keyword.cut(), rate: context.sampleRate };
  }

  /** Listens until done. @param {AudioContext} context @param {MediaStream} stream @param {KeywordCapture} keyword */
  _heard(context, stream, keyword) {
    const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
    return new Promise((resolve, reject) => {
      const none = () => reject(new CaptureError("The microphone gives no sound: try again, or choose files."));
      let waiting = setTimeout(none, SILENT_MS);
      node.port.onmessage = ({ data }) => {
        clearTimeout(waiting);
        keyword.hear(data);
        this._listening(keyword);
        if (!keyword.done) {
          waiting = setTimeout(none, SILENT_MS);
          return;
        }
        node.port.onmessage = null;
        resolve(undefined);
      };
      context.createMediaStreamSource(stream).connect(node);
    });
  }
}

/** The samples of a sound file: WAVE is decoded here, other formats by the browser. @param {File} file */
export async function soundOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (file.name.toLowerCase().endsWith(".wav")) return readWav(bytes);
  const context = new OfflineAudioContext(1, 1, RATE);
  const sound = await context.decodeAudioData(bytes.buffer);
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  const samples = channels[0].map((_, i) => (32768 * channels.reduce((all, channel) => all + channel[i], 0)) / channels.length);
  return { samples, rate: sound.sampleRate };
}
