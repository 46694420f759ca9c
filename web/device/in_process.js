/** The backend that works on rounds, from an offer to its contribution (device/backend/in_process.py). */

import { codecNamed } from "./codecs.js";
import { ErrorFeedback } from "./error_feedback.js";
import {
  BlobError,
  DeviceError,
  DiskError,
  MaskError,
  RoundLeftOut,
  StaleBase,
  TensorError,
  WorkStopped,
  oneLine,
} from "./errors.js";
import { masked } from "./masking/masked_update.js";
import { checkMasksPossible } from "./masking/seeds.js";
import { INLINE_LIMIT, hexOf } from "./messages.js";
import { ModelCache } from "./model_cache.js";
import { isSame } from "./offers.js";
import { bareHello, contributionMessage, planMessage } from "./reports.js";
import { DeviceTask } from "./task.js";
import { ENVELOPE_BYTES } from "./workload.js";

/** @typedef {import("./offers.js").OpenRound} OpenRound */
/**
 * Callbacks of a round's work. `progress`, from 0 to 1, may throw WorkStopped. `lost`: seconds that the work has been
 * paused. `decided`: the plan that is tried now. `made`: the result. `waiting`: the rounds of a run whose
 * contributions have no receipt.
 * @typedef {{progress: (done: number) => Promise<void>, lost: () => number,
 *   decided: (offer: any, plan: any, decision: any) => void, made: (made: WorkResult) => Promise<void>,
 *   waiting: (run: string) => Set<number>}} BackendListener
 *
 * The result of a round's work: the contribution, without boot and seq, and the bytes of its upload. The message is
 * null if the device sits out, for these `reasons`, or if it cannot be kept (`trouble`). `leastDevices`: a masked one can
 * be read only in a sum of so many devices; 0: it is sent in the clear.
 * @typedef {{run: string, round: number, message: any, label: string, bytesUp: number, leastDevices: number,
 *   outcome: any, reasons: string[], trouble: string}} WorkResult
 */

/** A reason in the plan of a masked update. */
const SHORTENED = "its changes were shortened to fit a masked sum";
/** Errors that concern more than one round, or that fetching anew may solve. */
const NOT_OF_ONE_ROUND = [BlobError, DiskError, StaleBase, WorkStopped, RoundLeftOut];

/**
 * Works on one task at a time: that of the offer that was previewed last. All methods throw RoundLeftOut for errors of
 * one round, StaleBase and BlobError for what must be fetched anew, DiskError.
 */
export class InProcess {
  /** @type {DeviceTask | null} */
  task = null;
  /**
   * The hash of the bundle of the task that is known here, which tells one task from another; empty if none is.
   */
  bundle = "";
  #environment;
  #link;
  #errorFeedback;
  /** The last offer whose base was compared with the bundle. @type {any} */
  #previewed = null;
  /** @type {(import("./task.js").RoundInputs & {of: any}) | null} */
  #inputs = null;

  /**
   * @param {any} environment see agent.js @param {any} blobs
   * @param {import("./link_speed.js").LinkSpeed} link
   */
  constructor(environment, blobs, link) {
    this.#environment = environment;
    this.#link = link;
    this.cache = new ModelCache(blobs);
    this.#errorFeedback = new ErrorFeedback(environment.disk, environment.log);
  }

  /** The device's hello. @param {bigint} boot */
  hello(boot) {
    return this.task ? this.task.hello(boot) : bareHello(boot);
  }

  /**
   * The blobs that a round still needs. Makes its task once the bundle is here. @param {OpenRound} current
   */
  preview({ offer, closes }) {
    return roundErrorsAsLeftOut(async () => {
      const missing = await this.cache.missingBundle(offer);
      if (missing.length) return missing;
      if (!this.isOf(offer)) await this.#make(offer);
      if (this.#previewed !== offer) {
        const why = await this.#openTask.restReason(offer, closes - this.#environment.clock());
        if (why) throw new RoundLeftOut(why);
        await this.cache.takeParts(await this.cache.bundle(offer.bundle), offer.base);
      }
      this.#previewed = offer;
      return this.cache.missing(offer.base, offer.aside);
    });
  }

  /** Make the base of a round. Nothing may be missing. @param {OpenRound} current */
  prepare({ offer }) {
    return roundErrorsAsLeftOut(() => this.#givenBy(offer));
  }

  /** Do the round's work. @param {OpenRound} current @param {BackendListener} listener */
  work({ offer, closes }, listener) {
    return roundErrorsAsLeftOut(async () => {
      if (offer.masks) await checkMasksPossible();
      const inputs = await this.#givenBy(offer);
      const { progress, lost: lostS } = listener;
      const decided = (/** @type {import("./work.js").Decision} */ decision) =>
        listener.decided(offer, planMessage(offer, decision), decision);
      const outcome = await this.#openTask.perform(inputs, closes, { progress, lost: lostS, decided });
      await listener.made(await this.#report(inputs, outcome, listener));
    });
  }

  /**
   * Judge the model that a round began with, on samples held out of training.
   * @param {OpenRound} current
   */
  judge({ offer }) {
    return roundErrorsAsLeftOut(async () => this.#openTask.judge(await this.#givenBy(offer)));
  }

  /** About how long `judge` takes, in seconds. */
  get judgingS() {
    return this.task?.judgingS ?? 0;
  }

  /** Logits (n, classes) by the current model; null if there is none. @param {Float32Array} x */
  async predict(x) {
    return this.task ? this.task.model.logits(x) : null;
  }

  /** Whether this offer is of the task that is known here. @param {any} offer */
  isOf(offer) {
    return this.task !== null && this.bundle === hexOf(offer.bundle);
  }

  /** Frees the memory of the engine. */
  async close() {
    await this.task?.close();
  }

  /** The receipt of a contribution has come. @param {any} message @param {boolean} counts */
  receiptReceived(message, counts) {
    return this.#errorFeedback.settle(message, counts);
  }

  get #openTask() {
    if (!this.task) throw new RoundLeftOut("the task is not known here");
    return this.task;
  }

  /** Make the task of this offer's bundle, in place of the current one. @param {any} offer */
  async #make(offer) {
    await this.task?.close();
    this.task = this.#inputs = null;
    this.bundle = "";
    const bundle = await this.cache.bundle(offer.bundle);
    this.task = await DeviceTask.make(this.#environment, bundle, this.#link);
    this.bundle = hexOf(offer.bundle);
  }

  /** The inputs of a round; the same object while its work goes on. @param {any} offer */
  async #givenBy(offer) {
    if (!this.#inputs || !isSame(this.#inputs.of, offer)) {
      const base = await this.cache.base(offer.base, this.#openTask.manifest);
      this.#inputs = { of: offer, offer, base, aside: await this.cache.aside(offer.aside) };
    }
    return this.#inputs;
  }

  /** Save what the codec left out of the update, then report the contribution. @returns {Promise<WorkResult>} */
  async #report(/** @type {any} */ inputs, /** @type {any} */ outcome, /** @type {BackendListener} */ listener) {
    const { offer } = inputs;
    const { run, round } = offer;
    const { contribution: update, plan, reasons } = outcome;
    const [label, waiting] = [plan.chosen?.label ?? "", listener.waiting(run)];
    const leastDevices = offer.masks?.min_group ?? 0;
    const nothing = { run, round, message: null, label, bytesUp: 0, leastDevices, outcome, reasons, trouble: "" };
    if (!update) return nothing;
    try {
      const { body, mask, left } = offer.masks
        ? await this.#masked(inputs, outcome, listener)
        : await this.#encoded(inputs, outcome, waiting);
      const sent = body.length > INLINE_LIMIT ? await this.cache.blobs.put(body) : body;
      const message = contributionMessage(offer, outcome, sent, mask);
      if (left) await this.#errorFeedback.put({ run, kind: update.kind, round, left }, waiting);
      return { ...nothing, message, bytesUp: body.length + ENVELOPE_BYTES };
    } catch (error) {
      if (error instanceof MaskError) return { ...nothing, trouble: oneLine(error) };
      const isExpected = [BlobError, DiskError, TensorError].some((kind) => error instanceof kind);
      if (!isExpected) throw error;
      return { ...nothing, trouble: `its contribution cannot be kept: ${oneLine(error)}` };
    }
  }

  /** The update by the codec of its kind, and what that leaves out. */
  async #encoded({ offer, base }, /** @type {any} */ { contribution, plan }, /** @type {Set<number>} */ waiting) {
    const before = await this.#errorFeedback.get(offer.run, contribution.kind, waiting);
    const codec = codecNamed(plan.chosen.strategy.codec);
    return { ...(await codec.encode(contribution.tensors, base, before)), mask: null };
  }

  /** The masked update; nothing else of it is kept. */
  async #masked({ offer, base }, /** @type {any} */ outcome, /** @type {BackendListener} */ listener) {
    const { contribution, plan } = outcome;
    const inputs = { offer, base, manifest: this.#openTask.manifest, device: this.#environment.name };
    const { body, mask, note } = await masked(contribution, plan.chosen.strategy, inputs);
    if (note) this.#tellShortened(note, offer, outcome, listener);
    return { body, mask, left: null };
  }

  /**
   * Log what was shortened of a masked update, and say that it was in a plan, without the factor, which would tell of
   * one device's update. With noise every update may be clipped: the plan is not sent again.
   */
  #tellShortened(/** @type {string} */ note, /** @type {any} */ offer, { plan, reasons }, /** @type {BackendListener} */ listener) {
    const clips = offer.masks.clip_milli > 0;
    this.#environment.log(clips ? "info" : "warning", `round ${offer.round}: ${note}`);
    const decision = { plan, reasons: [...reasons, SHORTENED], roomBytes: Infinity };
    if (!clips) listener.decided(offer, planMessage(offer, decision), decision);
  }
}

/** Throws RoundLeftOut in place of errors that concern one round only. @template T @param {() => Promise<T>} work */
async function roundErrorsAsLeftOut(work) {
  try {
    return await work();
  } catch (error) {
    const isOther = NOT_OF_ONE_ROUND.some((kind) => error instanceof kind);
    if (!(error instanceof DeviceError) || isOther) throw error;
    throw new RoundLeftOut(oneLine(error));
  }
}
