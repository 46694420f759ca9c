/**
 * Keeps contributions on disk, sends them whole or in compact form, and takes their receipts
 * (device/delivery/sending.py). The device's state machine decides when to send one.
 */

import { CompactSender } from "./compact_sender.js";

/** Sends what waits in the outbox by `messages`; `log` takes a level and a line. */
export class ContributionSender {
  #messages;
  #log;
  #compact = new CompactSender();

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
   * Save a contribution, with the boot and number that its receipt will name. Throws DiskError. @param {any} message
   */
  async keep(message) {
    const named = { ...message, boot: this.#messages.boot, seq: this.outbox.nextSeq };
    await this.outbox.add(named);
    return named;
  }

  /**
   * Send a contribution; one of an earlier process gets this one's boot. Returns whether it went in compact form, which
   * it may only the `first` time. Throws DiskError. @param {number} seq @param {boolean} first
   */
  async send(seq, first) {
    let message = this.outbox.message(seq);
    if (message.boot !== this.#messages.boot) {
      message = { ...message, boot: this.#messages.boot };
      await this.outbox.add(message);
    }
    const short = first && this.#messages.isCompact ? this.#compact.of(message) : null;
    if (short) {
      this.#messages.short(short, message.run);
      return true;
    }
    this.#compact.sends(message);
    this.#messages.contribution(message);
    return false;
  }

  /** Take a receipt, with which the contribution does not wait any longer, and log it. @param {number} seq */
  async settle(seq, /** @type {any} */ receipt) {
    const message = this.outbox.message(seq);
    await this.outbox.end(message);
    if (counts(receipt)) this.#compact.received(message);
    const text = [message.kind, receipt.status, receipt.reason].filter(Boolean).join(" ");
    this.#log(counts(receipt) ? "info" : "warning", `round ${receipt.round}: ${text}`);
  }

  /**
   * Remove a contribution without a receipt; `isOver`: a later round is open, so it has been counted.
   * @param {number} seq @param {boolean} isOver
   */
  async close(seq, isOver) {
    const message = this.outbox.message(seq);
    const { round, kind } = message;
    if (isOver) {
      this.#log("info", `round ${round}: ${kind}: the round is over`);
      await this.outbox.end(message);
    } else {
      this.#log("warning", `round ${round}: ${kind} was not receipted before the task was done`);
      await this.outbox.drop(seq);
    }
  }

  /** The aggregator may be another process now, which knows nothing of what was sent. */
  forget() {
    this.#compact.forget();
  }
}

/** Whether the contribution has been accepted, now or before. @param {any} receipt */
export function counts({ status }) {
  return status === "accepted" || status === "duplicate";
}
