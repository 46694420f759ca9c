/** Gets pictures from the camera or from files, as pixels. */

import { DataError } from "../device/errors.js";
import { pictureRaw } from "../device/preparing.js";
import { Capture } from "./capture.js";
import { h } from "./dom.js";

const MOST = 1024; // pixels of a side: the browser first shrinks a larger picture

/**
 * The pad that takes pictures.
 * @param {import("../device/preparing.js").InputSpec} spec
 * @param {(raw: Uint8Array | Float32Array | null) => void} changed
 * @param {(text: string) => void} trouble
 * @returns {import("./canvas.js").Pad}
 */
export function cameraPad(spec, changed, trouble) {
  const take = h("button", { type: "button", class: "main", hidden: true }, "Take a picture");
  const { video, button, off } = viewfinder((on) => (take.hidden = !on), trouble);
  const still = h("canvas", { class: "paper still", width: 1, height: 1, hidden: true, role: "img", "aria-label": "The picture" });
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
  take.addEventListener("click", () => video.videoWidth && show(video, fitting(video.videoWidth, video.videoHeight)));
  pick.addEventListener("change", async () => {
    try {
      const bitmap = pick.files.length ? await bitmapOf(pick.files[0]) : null;
      if (bitmap) show(bitmap, fitting(bitmap.width, bitmap.height));
      bitmap?.close();
    } catch (error) {
      trouble(error.message);
    }
  });
  const element = h("div", { class: "pad" }, video, still, h("div", { class: "row" }, take, button), h("label", { class: "file" }, "or choose one ", pick));
  return { element, how: "Take a picture of it, and choose its label.", clear, close: off };
}

/**
 * The camera's video, and the button that switches the camera on and off.
 * @param {(on: boolean) => void} switched called when the video begins or ends @param {(text: string) => void} trouble
 */
function viewfinder(switched, trouble) {
  const video = h("video", { class: "paper", playsinline: true, muted: true, hidden: true, "aria-label": "What the camera sees" });
  const button = h("button", { type: "button" }, "Use the camera");
  /** @param {MediaStream | null} stream */
  const see = (stream) => {
    video.srcObject = stream;
    video.hidden = stream === null;
    button.textContent = stream ? "Switch it off" : "Use the camera";
    if (!stream) switched(false);
  };
  const camera = new Capture("camera", (why) => {
    see(null);
    trouble(why);
  });
  const off = () => {
    camera.close();
    see(null);
  };
  button.addEventListener("click", async () => {
    if (video.srcObject) return off();
    trouble("");
    button.disabled = true;
    try {
      see(await camera.open());
      if (video.srcObject) await video.play().catch(() => {}); // closed meanwhile; without a stream it would wait for ever
      switched(video.srcObject !== null); // only now a picture can be taken
    } catch (error) {
      trouble(error.message);
    }
    button.disabled = false;
  });
  return { video, button, off };
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

/** The pixels without transparency, on a white ground. */
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
