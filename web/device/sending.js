/**
 * Sends contributions until they are receipted, across lost links and restarts of the process
 * (client/delivery/sending.py).
 */

import { CompactSender } from "./compact_sender.js";
import { MAX_RESEND_S, RESEND_S } from "./hello_retry.js";

/**
 * When a contribution was sent on this link to this aggregator; `waitS`: until it is sent again.
 * @typedef {{firstS: number, lastS: number, waitS: number}} Sent
 */

/**
 * Sends what waits in the outbox by `messages`; `log` takes a level and a line. A slow link is not filled with copies:
 * while it has anything to carry, the wait for a receipt does not begin. Times in seconds.
 */
export class ContributionSender {
  #messages;
  #log;
  /** By seq, in the order of sending. @type {Map<number, Sent>} */
  #sent = new Map();
  #compact = new CompactSender();
  #short = new Set();
  #busyS = -Infinity;

  /**
   * @param {any} outbox @param {import("./presence.js").DeviceMessages} messages
   * @param {(level: string, text: string) => void} log
   */
  constructor(outbox, messages, log) {
    this.outbox = outbox;
    this.#messages = messages;
    this.#log = log;
  }

  /**
   * Save a contribution, with the boot and number that its receipt will name; `due` sends it. Raises DiskError.
   * @param {any} message
   */
  async keep(message) {
    const named = { ...message, boot: this.#messages.boot, seq: this.outbox.nextSeq };
    await this.outbox.add(named);
    return named;
  }

  /**
   * Send what was not sent yet, and again what has waited for its receipt for too long. @param {number} now
   */
  async due(now) {
    if (this.#messages.unacknowledged()) this.#busyS = now;
    for (const message of [...this.outbox]) {
      const sent = this.#sent.get(message.seq);
      if (!sent || now - Math.max(sent.lastS, this.#busyS) >= sent.waitS) await this.#send(message, now);
    }
  }

  /** The run is over: drop its contributions without a receipt. @param {string} run */
  async drop(run) {
    for (const message of [...this.outbox].filter((one) => one.run === run)) {
      const { round, kind } = message;
      this.#log("warning", `round ${round}: ${kind} was not receipted before the task was done`);
      await this.outbox.drop(message.seq);
    }
  }

  /**
   * The link or the aggregator was down: the broker may have lost messages, so all are due at once. The link itself
   * resends messages without acknowledgement, except compact ones.
   */
  restart() {
    this.#compact.forget();
    const latest = [...this.#sent].filter(([seq]) => !this.#short.has(seq));
    const coming = latest.slice(Math.max(0, latest.length - this.#messages.unacknowledged("contribution")));
    this.#sent = new Map(coming.map(([seq, sent]) => [seq, { ...sent, waitS: RESEND_S }]));
  }

  /**
   * Take a receipt; one of a contribution that does not wait is ignored. Returns the bytes that were fetched from here,
   * and the seconds from sending to the receipt; null if it settles nothing.
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
    if (counts) this.#compact.received(message);
    const text = [message.kind, receipt.status, receipt.reason].filter(Boolean).join(" ");
    this.#log(counts ? "info" : "warning", `round ${receipt.round}: ${text}`);
    return { bytes: message.blob?.size ?? 0, seconds: sent ? now - sent.firstS : 0, message };
  }

  /**
   * Round `number` of a run is open: compact contributions to earlier rounds need not wait any longer. They have been
   * counted, or cannot be any more. @param {string} run @param {number} number
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
   * If the aggregator has no room now, send the contribution again when the receipt says. @param {any} receipt
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

  /** Send a contribution; one of an earlier process gets this one's boot. @param {any} message @param {number} now */
  async #send(message, now) {
    if (message.boot !== this.#messages.boot) {
      message = { ...message, boot: this.#messages.boot };
      await this.outbox.add(message);
    }
    const before = this.#sent.get(message.seq);
    this.#sent.delete(message.seq);
    const short = before || !this.#messages.isCompact ? null : this.#compact.of(message);
    if (short) {
      this.#short.add(message.seq);
      this.#messages.short(short, message.run);
    } else {
      this.#short.delete(message.seq);
      this.#compact.sends(message);
      this.#messages.contribution(message);
    }
    const waitS = before ? Math.min(2 * before.waitS, MAX_RESEND_S) : RESEND_S;
    this.#sent.set(message.seq, { firstS: before?.firstS ?? now, lastS: now, waitS });
  }
}
