/** Reads samples from files: arrays and tables with their labels, pictures and sounds with one label for all. */

import { readArrays } from "../device/arrays.js";
import { DataError } from "../device/errors.js";
import { isPicture, isSound, pictureRaw, sizeOf, whatOf } from "../device/preparing.js";
import { soundRaw } from "../device/sounds.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { pictureOf } from "./pictures.js";
import { soundOf } from "./recorder.js";

const ARRAYS = /\.(npz|npy|csv|tsv)$/i;
const FOLDER = "(name of its folder)";
const ACCEPT = { picture: "image/*,.npz,.npy,.csv", sound: "audio/*,.npz,.npy", numbers: ".npz,.npy,.csv,.tsv", windows: ".npz,.npy" };

/**
 * @param {import("../device/samples.js").Samples} samples
 * @param {import("../device/preparing.js").InputSpec} spec
 * @param {() => void} changed called after samples were stored
 */
export function filesForm(samples, spec, changed) {
  const what = whatOf(spec);
  const label = h("select", { id: "files-label" }, ...[...samples.labels, FOLDER].map((name) => h("option", {}, name)));
  const input = h("input", { type: "file", multiple: true, id: "files-input", accept: ACCEPT[what] });
  const folder = h("input", { type: "file", multiple: true, id: "folder-input", webkitdirectory: true });
  const status = h("p", { role: "status" });
  const read = async (from, chosen) => {
    status.textContent = "Reading …";
    const { kept: count, wrong } = await keepAll([...from.files], { samples, spec, label: chosen });
    from.value = "";
    status.textContent = [count && `${plural(count, "sample")} kept.`, ...wrong.slice(0, 3), wrong.length > 3 && `and ${wrong.length - 3} more`].filter(Boolean).join(" ");
    changed();
  };
  input.addEventListener("change", () => read(input, label.value));
  folder.addEventListener("change", () => read(folder, FOLDER));
  const several = what === "numbers" ? "Tables and arrays contain their labels." : "Arrays (.npz with x and y) contain their labels. For other files, choose one:";
  return h(
    "div",
    { class: "form" },
    h("p", {}, several),
    what === "numbers" ? null : h("label", { for: "files-label" }, "Label"),
    what === "numbers" ? null : label,
    h("label", { for: "files-input" }, "Files"),
    input,
    what === "numbers" ? null : h("label", { for: "folder-input" }, "or a folder with one folder for each label"),
    what === "numbers" ? null : folder,
    status,
  );
}

/** @returns {Promise<{kept: number, wrong: string[]}>} how many samples were stored, and an error for each bad file */
async function keepAll(files, { samples, spec, label }) {
  let count = 0;
  const wrong = [];
  for (const file of files) {
    try {
      count += await keep(file, { samples, spec, label });
    } catch (error) {
      wrong.push(`${file.name}: ${error.message}.`);
    }
  }
  return { kept: count, wrong };
}

async function keep(file, { samples, spec, label }) {
  const named = label === FOLDER ? (file.webkitRelativePath.split("/").at(-2) ?? "") : label;
  if (!ARRAYS.test(file.name)) {
    await samples.add(named, await rawOf(file, spec), Date.now());
    return 1;
  }
  const batch = await readArrays(file.name, new Uint8Array(await file.arrayBuffer()), spec.shape);
  const size = sizeOf(spec.shape);
  const labels = batch.labels ?? Array.from({ length: batch.count }, () => named);
  const groups = grouped(labels);
  for (const name of groups.keys()) samples.number(name); // all or nothing: the file may be given again
  if (batch.raw instanceof Float32Array && !batch.raw.every(Number.isFinite)) throw new DataError("a value is not finite");
  for (const [name, places] of groups) {
    const raw = new /** @type {any} */ (batch.raw.constructor)(places.length * size);
    places.forEach((place, i) => raw.set(batch.raw.subarray(place * size, (place + 1) * size), i * size));
    await samples.add(name, raw, Date.now());
  }
  return batch.count;
}

/** @param {(string | number)[]} labels @returns {Map<string | number, number[]>} label -> places */
function grouped(labels) {
  const places = new Map();
  labels.forEach((label, place) => (places.get(label) ?? places.set(label, []).get(label)).push(place));
  return places;
}

async function rawOf(file, spec) {
  if (isSound(spec)) {
    const { samples, rate } = await soundOf(file);
    return soundRaw(spec, samples, rate);
  }
  if (isPicture(spec)) return pictureRaw(spec, await pictureOf(file));
  throw new DataError("this task takes tables and arrays");
}
