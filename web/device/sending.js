/** Sending contributions until they are receipted, across lost links and lives of the process. */

import { Brief } from "./compact_sender.js";
import { MAX_RESEND_S, RESEND_S } from "./hello_retry.js";

/**
 * When, on this link and to this life of the aggregator; `waitS`: until it is sent again.
 * @typedef {{firstS: number, lastS: number, waitS: number}} Sent
 */

/**
 * What waits in the outbox, sent by `voice` in the name of its life; `log` takes a level and a line. A slow
 * link is not filled with copies: while it has anything to carry, no silence is counted. Times in seconds.
 */
export class Sending {
  #voice;
  #log;
  /** By seq; the latest is the last. @type {Map<number, Sent>} */
  #sent = new Map();
  #brief = new Brief();
  #short = new Set();
  #busyS = -Infinity;

  /**
   * @param {any} outbox @param {import("./presence.js").Voice} voice
   * @param {(level: string, text: string) => void} log
   */
  constructor(outbox, voice, log) {
    this.outbox = outbox;
    this.#voice = voice;
    this.#log = log;
  }

  /** On the disk, with its name in the receipt; `due` sends it. Raises DiskError. @param {any} message */
  async keep(message) {
    const named = { ...message, boot: this.#voice.boot, seq: this.outbox.nextSeq };
    await this.outbox.add(named);
    return named;
  }

  /**
   * Send what was not sent yet, and again what has waited for its receipt for too long. @param {number} now
   */
  async due(now) {
    if (this.#voice.underWay()) this.#busyS = now;
    for (const message of [...this.outbox]) {
      const sent = this.#sent.get(message.seq);
      if (!sent || now - Math.max(sent.lastS, this.#busyS) >= sent.waitS) await this.#send(message, now);
    }
  }

  /** The run is over: nobody waits for what it has not receipted. @param {string} run */
  async drop(run) {
    for (const message of [...this.outbox].filter((one) => one.run === run)) {
      const { round, kind } = message;
      this.#log("warning", `round ${round}: ${kind} was not receipted before the task was done`);
      await this.outbox.drop(message.seq);
    }
  }

  /**
   * The link was down, or the aggregator: what the broker had may be lost, and is due at once. What it has
   * not acknowledged, the link brings by itself, but for what went in few bytes.
   */
  restart() {
    this.#brief.forget();
    const latest = [...this.#sent].filter(([seq]) => !this.#short.has(seq));
    const coming = latest.slice(Math.max(0, latest.length - this.#voice.underWay("contribution")));
    this.#sent = new Map(coming.map(([seq, sent]) => [seq, { ...sent, waitS: RESEND_S }]));
  }

  /**
   * The aggregator has decided; a receipt of anything that does not wait is ignored. Returns what was fetched
   * from here in bytes, and the seconds from sending to the receipt; null where it ends nothing.
   * @param {any} receipt @param {number} now
   * @returns {Promise<{bytes: number, seconds: number, message: any} | null>}
   */
  async settle(receipt, now) {
    const message = await this.outbox.settle(receipt);
    if (!message) {
      this.#putOff(receipt, now);
      return null;
    }
    const sent = this.#forget(message);
    const counts = receipt.status === "accepted" || receipt.status === "duplicate";
    if (counts) this.#brief.received(message);
    const text = [message.kind, receipt.status, receipt.reason].filter(Boolean).join(" ");
    this.#log(counts ? "info" : "warning", `round ${receipt.round}: ${text}`);
    return { bytes: message.blob?.size ?? 0, seconds: sent ? now - sent.firstS : 0, message };
  }

  /**
   * Round `number` of a run is open, and what was sent in few bytes for those before has either been counted,
   * or cannot be any more. @param {string} run @param {number} number
   */
  async over(run, number) {
    for (const message of [...this.outbox]) {
      if (message.run !== run || message.round >= number || !this.#short.has(message.seq)) continue;
      this.#log("info", `round ${message.round}: ${message.kind}: the round is over`);
      this.#forget(message);
      await this.outbox.end(message);
    }
  }

  /** @param {any} message */
  #forget(message) {
    const sent = this.#sent.get(message.seq);
    this.#short.delete(message.seq);
    this.#sent.delete(message.seq);
    return sent;
  }

  /**
   * If the aggregator has no room for it now, it is sent again when that says. @param {any} receipt
   * @param {number} now
   */
  #putOff(receipt, now) {
    const message = this.outbox.named(receipt);
    const waitS = receipt.retry_after_s;
    if (!message || !waitS) return;
    const firstS = this.#sent.get(message.seq)?.firstS ?? now;
    this.#sent.set(message.seq, { firstS, lastS: now, waitS });
    this.#log("warning", `round ${receipt.round}: ${message.kind} again in ${waitS} s: ${receipt.reason}`);
  }

  /** One of an earlier life is sent in this one's name. @param {any} message @param {number} now */
  async #send(message, now) {
    if (message.boot !== this.#voice.boot) {
      message = { ...message, boot: this.#voice.boot };
      await this.outbox.add(message);
    }
    const before = this.#sent.get(message.seq);
    this.#sent.delete(message.seq);
    const short = before || !this.#voice.isBrief ? null : this.#brief.of(message);
    if (short) {
      this.#short.add(message.seq);
      this.#voice.short(short, message.run);
    } else {
      this.#short.delete(message.seq);
      this.#brief.sends(message);
      this.#voice.contribution(message);
    }
    const waitS = before ? Math.min(2 * before.waitS, MAX_RESEND_S) : RESEND_S;
    this.#sent.set(message.seq, { firstS: before?.firstS ?? now, lastS: now, waitS });
  }
}
