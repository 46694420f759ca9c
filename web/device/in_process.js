/** Work on rounds: from an offer to the contribution that it asks for. */

import { named } from "./codecs.js";
import { BlobError, DeviceError, DiskError, LeftOut, StaleBase, Stopped, TensorError } from "./errors.js";
import { oneLine } from "./errors.js";
import { Holdings } from "./model_cache.js";
import { Leftovers } from "./error_feedback.js";
import { INLINE_LIMIT, hexOf } from "./messages.js";
import { isSame } from "./offers.js";
import { bareHello, contributionMessage, planMessage } from "./reports.js";
import { DeviceTask } from "./task.js";
import { ENVELOPE_BYTES } from "./workload.js";

/** @typedef {import("./offers.js").Open} Open */
/**
 * Who is told of a round's work, and asked. `progress`, from 0 to 1, may throw Stopped. `lost`: seconds that
 * the work has stood still. `decided` is told before anything is tried, `made` when it is done. `waiting`:
 * the rounds of a run whose contributions have no receipt.
 * @typedef {{progress: (done: number) => Promise<void>, lost: () => number,
 *   decided: (offer: any, plan: any, decision: any) => void, made: (made: Made) => Promise<void>,
 *   waiting: (run: string) => Set<number>}} Ears
 *
 * What came of a round's work: the message, boot and seq still to be filled in; null where the device sits
 * out, for these `reasons`, or where it cannot be kept.
 * @typedef {{run: string, round: number, message: any, label: string, bytesUp: number, outcome: any,
 *   reasons: string[], trouble: string}} Made
 */

/** What ends more than one round's work, or is mended by fetching anew. */
const NOT_OF_ONE_ROUND = [BlobError, DiskError, StaleBase, Stopped, LeftOut];

/**
 * One task at a time: that of the offer which was looked at last. All methods throw LeftOut for what is wrong
 * with one round, StaleBase and BlobError for what is to be fetched anew, DiskError.
 */
export class Here {
  /** @type {DeviceTask | null} */
  task = null;
  /**
   * By which the task that is known here is told from another: hex digits of its bundle; empty where none is.
   */
  bundle = "";
  #environment;
  #link;
  #leftovers;
  /** The offer whose base was looked for in the bundle last. @type {any} */
  #looked = null;
  /** @type {(import("./task.js").Given & {of: any}) | null} */
  #given = null;

  /**
   * @param {any} environment see agent.js @param {any} blobs
   * @param {import("./link_speed.js").LinkSpeed} link
   */
  constructor(environment, blobs, link) {
    this.#environment = environment;
    this.#link = link;
    this.holdings = new Holdings(blobs);
    this.#leftovers = new Leftovers(environment.disk, environment.log);
  }

  /** Who is here, and with what. @param {bigint} boot */
  hello(boot) {
    return this.task ? this.task.hello(boot) : bareHello(boot);
  }

  /**
   * What a round still needs to be worked on. Makes its task, once its bundle is here. @param {Open} current
   */
  look({ offer }) {
    return leftOut(async () => {
      const missing = await this.holdings.missingBundle(offer);
      if (missing.length) return missing;
      if (!this.isOf(offer)) await this.#make(offer);
      if (this.#looked !== offer) await this.holdings.takeParts(await this.holdings.bundle(offer.bundle), offer.base);
      this.#looked = offer;
      return this.holdings.missing(offer.base, offer.aside);
    });
  }

  /** Have the base of a round at hand. Nothing may be missing. @param {Open} current */
  prepare({ offer }) {
    return leftOut(() => this.#givenBy(offer));
  }

  /** The round's work. @param {Open} current @param {Ears} ears */
  work({ offer, closes }, ears) {
    return leftOut(async () => {
      const given = await this.#givenBy(offer);
      const { progress, lost } = ears;
      const decided = (/** @type {import("./work.js").Decision} */ decision) =>
        ears.decided(offer, planMessage(offer, decision), decision);
      const outcome = await this.#known.perform(given, closes, { progress, lost, decided });
      await ears.made(await this.#report(given, outcome, ears.waiting(offer.run)));
    });
  }

  /**
   * How well the model that a round began with does on samples that are kept out of training.
   * @param {Open} current
   */
  judge({ offer }) {
    return leftOut(async () => this.#known.judge(await this.#givenBy(offer)));
  }

  /** About how long that takes, in seconds. */
  get judgingS() {
    return this.task?.judgingS ?? 0;
  }

  /** Logits (n, classes) by the model at hand; null where there is none. @param {Float32Array} x */
  async predict(x) {
    return this.task ? this.task.model.logits(x) : null;
  }

  /** Whether the task that is known here is that of this offer. @param {any} offer */
  isOf(offer) {
    return this.task !== null && this.bundle === hexOf(offer.bundle);
  }

  /** Gives back what the engine holds. */
  async close() {
    await this.task?.close();
  }

  /** A contribution has its receipt. @param {any} message @param {boolean} counts */
  settle(message, counts) {
    return this.#leftovers.settle(message, counts);
  }

  get #known() {
    if (!this.task) throw new LeftOut("the task is not known here");
    return this.task;
  }

  /** The task of this offer's bundle, in place of the one at hand. @param {any} offer */
  async #make(offer) {
    await this.task?.close();
    this.task = this.#given = null;
    this.bundle = "";
    const bundle = await this.holdings.bundle(offer.bundle);
    this.task = await DeviceTask.make(this.#environment, bundle, this.#link);
    this.bundle = hexOf(offer.bundle);
  }

  /** What a round gives; the same again while its work goes on. @param {any} offer */
  async #givenBy(offer) {
    if (!this.#given || !isSame(this.#given.of, offer)) {
      const base = await this.holdings.base(offer.base, this.#known.manifest);
      this.#given = { of: offer, offer, base, aside: await this.holdings.aside(offer.aside) };
    }
    return this.#given;
  }

  /** Keeps what the codec remembers of what was trained. @returns {Promise<Made>} */
  async #report({ offer, base }, /** @type {any} */ outcome, /** @type {Set<number>} */ waiting) {
    const { run, round } = offer;
    const { contribution: made, plan, reasons } = outcome;
    const label = plan.chosen?.label ?? "";
    const nothing = { run, round, message: null, label, bytesUp: 0, outcome, reasons, trouble: "" };
    if (!made) return nothing;
    try {
      const left = await this.#leftovers.get(run, made.kind, waiting);
      const encoded = await named(plan.chosen.strategy.codec).encode(made.tensors, base, left);
      const { body } = encoded;
      const sent = body.length > INLINE_LIMIT ? await this.holdings.blobs.put(body) : body;
      const message = contributionMessage(offer, outcome, sent);
      const { left: rest } = encoded;
      if (rest) await this.#leftovers.put({ run, kind: made.kind, round, left: rest }, waiting);
      return { ...nothing, message, bytesUp: body.length + ENVELOPE_BYTES };
    } catch (error) {
      const isExpected = [BlobError, DiskError, TensorError].some((one) => error instanceof one);
      if (!isExpected) throw error;
      return { ...nothing, trouble: `its contribution cannot be kept: ${oneLine(error)}` };
    }
  }
}

/** Throws LeftOut in place of what is wrong with one round. @template T @param {() => Promise<T>} work */
async function leftOut(work) {
  try {
    return await work();
  } catch (error) {
    const isOther = NOT_OF_ONE_ROUND.some((one) => error instanceof one);
    if (!(error instanceof DeviceError) || isOther) throw error;
    throw new LeftOut(oneLine(error));
  }
}
