/** The pad that records one second of sound, and shows it as the model sees it. */

import { isSound } from "../device/preparing.js";
import { RATE, readWav, samplesOf, soundRaw } from "../device/sounds.js";
import { h } from "./dom.js";
import { whyNot } from "./pictures.js";
import { paintSample } from "./thumbnail.js";

const SETTLE_S = 0.15; // after the microphone was opened: its first samples are of nothing

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
  const said = h("span", { role: "status", class: "quiet" });
  const clear = () => {
    canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    changed(null);
  };
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const { samples, rate } = await recorded(seconds, () => (said.textContent = "Speak now …"));
      const raw = soundRaw(spec, samples, rate);
      paintSample(canvas, spec, raw);
      said.textContent = "Recorded.";
      changed(raw);
    } catch (error) {
      said.textContent = "";
      trouble(whyNot("microphone", error));
    }
    button.disabled = false;
  });
  const element = h("div", { class: "pad" }, canvas, h("div", { class: "row" }, button, said));
  return { element, how: `Record it (${seconds.toFixed(0)} second), and say what it is.`, clear };
}

/** So many seconds of the microphone, -32768 to 32767. `speak` is called when it listens. */
async function recorded(seconds, speak) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 }, video: false });
  const context = new AudioContext();
  try {
    await context.audioWorklet.addModule(new URL("microphone.js", import.meta.url));
    const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
    const wanted = Math.ceil((seconds + SETTLE_S) * context.sampleRate);
    const parts = [];
    await new Promise((resolve) => {
      let count = 0;
      node.port.onmessage = ({ data }) => {
        parts.push(data);
        count += data.length;
        if (count >= wanted) resolve(undefined);
      };
      context.createMediaStreamSource(stream).connect(node);
      speak();
    });
    const samples = Float32Array.from(parts.flatMap((part) => Array.from(part)), (value) => 32768 * value);
    return { samples: samples.slice(Math.ceil(SETTLE_S * context.sampleRate)), rate: context.sampleRate };
  } finally {
    for (const track of stream.getTracks()) track.stop();
    await context.close();
  }
}

/** The samples of a file: WAVE is read here, anything else by the browser. @param {File} file */
export async function soundOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (file.name.toLowerCase().endsWith(".wav")) return readWav(bytes);
  const context = new OfflineAudioContext(1, 1, RATE);
  const sound = await context.decodeAudioData(bytes.buffer);
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  const samples = channels[0].map((_, i) => (32768 * channels.reduce((all, one) => all + one[i], 0)) / channels.length);
  return { samples, rate: sound.sampleRate };
}
