/**
 * A bundle in one zip: manifest, weights and graphs, verified when it is opened (models/bundles/bundle.py).
 */

import { readZip } from "./archive.js";
import { hex, sha256, text as textOf } from "./bytes.js";
import { checkManifest } from "./consistency.js";
import { BundleError, ModelError } from "./errors.js";
import { check, float32 } from "./flat.js";
import { fromHalf } from "./half.js";
import { readManifest } from "./manifest.js";
import { read } from "./safetensors.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./manifest.js").Manifest} Manifest */

const MANIFEST = "manifest.json";

/** A verified bundle. It holds the zip, because its files are views of it. */
export class Bundle {
  #files;

  /** @param {Manifest} manifest @param {Map<string, Uint8Array>} files @param {string} digest */
  constructor(manifest, files, digest) {
    this.manifest = manifest;
    this.#files = files;
    /** The sha256 of the zip in hex digits, by which a task names the bundle. */
    this.sha256 = digest;
  }

  /**
   * Raises BundleError for a missing or damaged file, another format, or parts that do not fit each other.
   * @param {Uint8Array} data the zip, which must not change any more @returns {Promise<Bundle>}
   */
  static async open(data) {
    const files = readZip(data);
    const stated = files.get(MANIFEST);
    if (!stated) throw new BundleError(`not a bundle: it has no ${MANIFEST}`);
    const manifest = await readManifest(stated);
    checkManifest(manifest);
    const { text } = manifest.input;
    const entries = [manifest.weights, ...Object.values(manifest.graphs), ...(text ? [text.tokenizer] : [])];
    for (const entry of entries) await verify(manifest, entry, files);
    const bundle = new Bundle(manifest, files, hex(await sha256(data)));
    bundle.weights();
    return bundle;
  }

  /** Every tensor of the weights file; float16 tensors become float32. @returns {Tensors} */
  weights() {
    const { weights, stored_as, name } = this.manifest;
    try {
      const stored = read(/** @type {Uint8Array} */ (this.#files.get(weights.file)));
      const tensors = stored_as === "float16" ? widened(stored) : stored;
      check(tensors, this.manifest.stored());
      return tensors;
    } catch (error) {
      if (!(error instanceof ModelError)) throw error;
      throw new BundleError(`${weights.file} of bundle ${name}: ${error.message}`);
    }
  }

  /** The tokenizer of a bundle whose input is texts, as JSON; else empty. */
  get tokenizer() {
    const { text } = this.manifest.input;
    return text ? textOf(/** @type {Uint8Array} */ (this.#files.get(text.tokenizer.file))) : "";
  }

  /** The manifest's entry of a graph. Raises BundleError for an unknown name. @param {string} name */
  entry(name) {
    const { graphs, name: bundle } = this.manifest;
    if (Object.hasOwn(graphs, name)) return graphs[name];
    throw new BundleError(
      `bundle ${bundle} has no graph '${name}'; it has ${Object.keys(graphs).join(", ")}`,
    );
  }

  /**
   * The ONNX graph of that name, without weights. Raises BundleError for an unknown name.
   * @param {string} name
   * @returns {Uint8Array}
   */
  graph(name) {
    return /** @type {Uint8Array} */ (this.#files.get(this.entry(name).file));
  }
}

/**
 * @param {Manifest} manifest
 * @param {any} entry a File or Graph of it
 * @param {Map<string, Uint8Array>} files
 */
async function verify(manifest, entry, files) {
  const where = `${entry.file} of bundle ${manifest.name}`;
  const data = files.get(entry.file);
  if (!data) throw new BundleError(`${where} is missing; fetch the bundle again`);
  const digest = hex(await sha256(data));
  if (digest !== entry.sha256) {
    const says = `sha256 is ${digest.slice(0, 8)}.., the manifest says ${entry.sha256.slice(0, 8)}..`;
    throw new BundleError(`${where} is damaged: ${says}; fetch the bundle again`);
  }
  if (data.length !== entry.bytes) {
    throw new BundleError(`${where} has ${data.length} bytes, the manifest says ${entry.bytes}`);
  }
}

/** float16 tensors as float32, without loss. @param {Tensors} tensors @returns {Tensors} */
function widened(tensors) {
  return new Map(
    [...tensors].map(([name, tensor]) => {
      if (tensor.dtype !== "float16") return [name, tensor];
      return [name, float32(tensor.shape, Float32Array.from(tensor.data, fromHalf))];
    }),
  );
}
