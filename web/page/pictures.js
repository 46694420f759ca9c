/** Pictures from the camera or from files, as pixels. */

import { DataError } from "../device/errors.js";
import { pictureRaw } from "../device/preparing.js";
import { h } from "./dom.js";

const MOST = 1024; // pixels of a side: what is larger is made smaller by the browser first

/**
 * The pad that takes pictures.
 * @param {import("../device/preparing.js").InputSpec} spec
 * @param {(raw: Uint8Array | Float32Array | null) => void} changed
 * @param {(text: string) => void} trouble
 * @returns {import("./canvas.js").Pad}
 */
export function cameraPad(spec, changed, trouble) {
  const video = h("video", { class: "paper", playsinline: true, muted: true, hidden: true, "aria-label": "What the camera sees" });
  const still = h("canvas", { class: "paper still", width: 1, height: 1, hidden: true, role: "img", "aria-label": "The picture" });
  const start = h("button", { type: "button" }, "Use the camera");
  const take = h("button", { type: "button", class: "main", hidden: true }, "Take a picture");
  const pick = h("input", { type: "file", accept: "image/*", capture: "environment", "aria-label": "A picture from this device" });
  const show = (source, size) => {
    Object.assign(still, size);
    still.hidden = false;
    context(still).drawImage(source, 0, 0, size.width, size.height);
    changed(pictureRaw(spec, pixelsOf(still)));
  };
  const clear = () => {
    still.hidden = true;
    pick.value = "";
    changed(null);
  };
  start.addEventListener("click", async () => {
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
      await video.play();
      for (const [element, hidden] of /** @type {[HTMLElement, boolean][]} */ ([[video, false], [take, false], [start, true]])) element.hidden = hidden;
    } catch (error) {
      trouble(whyNot("camera", error));
    }
  });
  take.addEventListener("click", () => show(video, fitting(video.videoWidth, video.videoHeight)));
  pick.addEventListener("change", async () => {
    try {
      const bitmap = pick.files.length ? await bitmapOf(pick.files[0]) : null;
      if (bitmap) show(bitmap, fitting(bitmap.width, bitmap.height));
    } catch (error) {
      trouble(error.message);
    }
  });
  addEventListener("pagehide", () => stop(video));
  const element = h("div", { class: "pad" }, video, still, h("div", { class: "row" }, start, take), h("label", { class: "file" }, "or choose one ", pick));
  return { element, how: "Take a picture of it, and say what it is.", clear };
}

function stop(video) {
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
}

/** The pixels of a file. @param {Blob} file @returns {Promise<import("../device/preparing.js").Picture>} */
export async function pictureOf(file) {
  const bitmap = await bitmapOf(file);
  const canvas = Object.assign(document.createElement("canvas"), fitting(bitmap.width, bitmap.height));
  context(canvas).drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return pixelsOf(canvas);
}

async function bitmapOf(file) {
  try {
    return await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    throw new DataError(`${file.name ?? "the picture"} is no picture that this browser can read`);
  }
}

function fitting(width, height) {
  const scale = Math.min(1, MOST / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
}

const context = (canvas) => canvas.getContext("2d", { willReadFrequently: true });

/** Without transparency: what is clear is white. */
function pixelsOf(canvas) {
  const { width, height } = canvas;
  const { data } = context(canvas).getImageData(0, 0, width, height);
  const pixels = new Uint8Array(3 * width * height);
  for (let i = 0; i < width * height; i++) {
    const share = data[4 * i + 3] / 255;
    for (let c = 0; c < 3; c++) pixels[3 * i + c] = Math.round(share * data[4 * i + c] + (1 - share) * 255);
  }
  return { pixels, width, height, channels: 3 };
}

/** Why the browser gave no camera or microphone, in plain words. */
export function whyNot(what, error) {
  if (!globalThis.isSecureContext) return `The ${what} needs a secure page: open it by https.`;
  if (error.name === "NotAllowedError") return `This page may not use the ${what}: allow it in the browser's settings of this site.`;
  if (error.name === "NotFoundError") return `This device has no ${what}, or another program has it.`;
  return `The ${what} cannot be used: ${error.message}`;
}
