/** Decides which offers, rounds and receipts a device acts on (device/connection/trust.py). */
import { fromHex, hex, text, utf8 } from "./bytes.js";
import { MAC_BYTES, decodeOffer, splitMac } from "./compact_round.js";
import { DiskError, MessageError, NotTrusted } from "./errors.js";
import { publicKey } from "./key_agreement.js";
import { Receipt, decode, offerIn } from "./messages.js";
import { SessionKey, mapped } from "./session_mac.js";
import { KEY_BYTES, Verifier } from "./signing.js";

/** Runs whose latest round is remembered. */
const RUNS = 64;

/** Tasks whose latest offer's time of issue is remembered. */
const TASKS = 64;
/** The file of the times at which the latest offer of each task was issued. */
const ISSUED = "issued";

/** The file of the aggregator's present key, if it is not the one that the device was enrolled with. */
const SUCCESSOR = "successor";

/** `size` random bytes. @param {number} size */
const drawn = (size) => crypto.getRandomValues(new Uint8Array(size));

/** When the latest offer of each task was issued, by one aggregator's key; kept on a disk, if given. */
class IssueTimes {
  #key;
  #disk;
  /** @type {Map<string, number>} */
  #lastIssued = new Map();

  /** Reads what an earlier process kept, unless it is of another key or damaged. */
  static async open(/** @type {Uint8Array} */ key, /** @type {import("./disk.js").Disk | null} */ disk) {
    const issued = new IssueTimes(key, disk);
    const bytes = await disk?.get(ISSUED);
    try {
      const { key: of, issued: entries } = bytes ? JSON.parse(text(bytes)) : { key: "", issued: {} };
      if (of === issued.#key) issued.#lastIssued = new Map(Object.entries(entries).filter((entry) => Number.isInteger(entry[1])));
    } catch {} // a damaged file: old offers cannot be told from new ones
    return issued;
  }

  /** The times are of this key's offers from now on. @param {Uint8Array} key */
  async succeed(key) {
    this.#key = hex(key);
    await this.#write();
  }

  /** @private */
  constructor(key, disk) {
    this.#key = hex(key);
    this.#disk = disk;
  }

  /** Seconds since 1970; 0 if no offer of the task is known. @param {string} task */
  latest(task) {
    return this.#lastIssued.get(task) ?? 0;
  }

  /** Note the time of an accepted offer; until this process ends if the disk fails. @param {string} task @param {number} issued */
  async note(task, issued) {
    if (issued <= this.latest(task)) return;
    this.#lastIssued.delete(task);
    this.#lastIssued.set(task, issued);
    while (this.#lastIssued.size > TASKS) this.#lastIssued.delete(this.#lastIssued.keys().next().value ?? "");
    await this.#write().catch((error) => {
      if (!(error instanceof DiskError)) throw error; // offers are taken all the same, and free room
    });
  }

  async #write() {
    const record = { key: this.#key, issued: Object.fromEntries(this.#lastIssued) };
    await this.#disk?.put(ISSUED, utf8(JSON.stringify(record)));
  }
}

/**
 * Checks offers. With an aggregator's key (32 bytes) only its offers count, and none older than the last. Without a key
 * any offer counts, signed or not.
 */
export class Trust {
  /** Sent in a hello, so that the aggregator can send compact messages with a MAC, unsigned. */
  key = new Uint8Array();
  #verifier;
  #sessionKey;
  #issued;
  #signs = false;
  /** The key that the device was enrolled with, the disk, and the device's own secret key for the session key. */
  #enrolled;
  #disk;
  #own;
  #rounds = new Map();

  /**
   * `disk` keeps the time of the latest offers across restarts; `signs`: the device signs its hellos, so its aggregator
   * adds a MAC to its receipts. Rejects with NotTrusted for an invalid key.
   * @param {Uint8Array} key empty: without @param {(size: number) => Uint8Array} [draw]
   * @param {import("./disk.js").Disk | null} [disk] @param {boolean} [signs]
   */
  static async open(key, draw = drawn, disk = null, signs = false) {
    if (!key.length) return new Trust(null, null, null);
    const now = await successor(key, disk);
    const trust = new Trust(await Verifier.open(now), null, await IssueTimes.open(now, disk));
    const own = draw(KEY_BYTES);
    [trust.#signs, trust.#enrolled, trust.#disk, trust.#own] = [signs, key, disk, own];
    try {
      trust.key = await publicKey(own);
    } catch {
      return trust; // without X25519 in this browser, the aggregator sends whole offers
    }
    trust.#sessionKey = await SessionKey.agreed(own, mapped(now));
    return trust;
  }

  /** @private */
  constructor(verifier, sessionKey, issued) {
    this.#verifier = verifier;
    this.#sessionKey = sessionKey;
    this.#issued = issued;
  }

  /** The MAC of a payload of this device on this topic, in this run; needs a `key`. @returns {Promise<Uint8Array>} */
  mac(topic, run, payload) {
    return this.#sessionKey.mac(topic, run, payload);
  }

  /** The receipt that came on this topic. Rejects with MessageError as `offer`. */
  async receipt(topic, payload) {
    if (!(this.#signs && this.#sessionKey)) return decode(Receipt, payload);
    const content = payload.slice(0, -MAC_BYTES);
    if (!(await this.#sessionKey.verifies(payload.slice(-MAC_BYTES), topic, "", content))) {
      throw new NotTrusted(
        `receipt on ${topic} refused: it is not said to this device by the aggregator that it is enrolled with`,
      );
    }
    return decode(Receipt, content);
  }

  /** The next round of this run that came on this topic. Rejects with MessageError as `offer`. */
  async next(topic, run, payload) {
    const { content, mac } = splitMac(payload);
    if (!this.#verifier) return decodeOffer(content);
    if (!(await this.#sessionKey?.verifies(mac, topic, run, content))) {
      throw new NotTrusted(
        `next round on ${topic} refused: it is not said to this device, for run '${run}', by the aggregator ` +
          "that it is enrolled with",
      );
    }
    const offer = decodeOffer(content);
    this.#rounds.set(run, Math.max(this.#rounds.get(run) ?? 0, offer.round));
    return offer;
  }

  /**
   * The offer that came on this topic. Rejects with MessageError with the reason why it is refused. Rounds of a run
   * only go up, and so do times of issue: an earlier one was recorded by somebody and is sent again. A round that is
   * `retained` only says that there is a task.
   */
  async offer(topic, payload, retained = false) {
    if (!this.#verifier) return offerIn(payload);
    const before = this.#verifier.key;
    const { offer, issued } = await this.#verifier.open(topic, payload);
    if (this.#verifier.key !== before) await this.#succeed(this.#verifier.key);
    const { task, run, round, done } = offer;
    const [isSign, newest] = [retained && !done, this.#issued.latest(task)];
    if (issued < newest && !isSign) {
      throw new MessageError(
        `offer of round ${round} of '${task}' refused: it was issued at ${issued}, and one of ${newest} was taken ` +
          "before. Either it is sent again by somebody who kept it, or the aggregator's clock went back",
      );
    }
    const latest = this.#rounds.get(run) ?? 0;
    this.#rounds.delete(run);
    this.#rounds.set(run, Math.max(latest, round));
    while (this.#rounds.size > RUNS) this.#rounds.delete(this.#rounds.keys().next().value);
    if (round > 0 && round < latest && !isSign) {
      throw new MessageError(`offer of round ${round} refused: round ${latest} of this run was offered before`);
    }
    await this.#issued.note(task, issued);
    return offer;
  }

  /** The aggregator has a new key, which the old one has signed. Only the new key counts from now on. */
  async #succeed(/** @type {Uint8Array} */ key) {
    if (this.#sessionKey) this.#sessionKey = await SessionKey.agreed(this.#own, mapped(key));
    await this.#disk?.put(SUCCESSOR, utf8(JSON.stringify({ of: hex(this.#enrolled), key: hex(key) })));
    await this.#issued.succeed(key); // the next process begins with the new key, and reads the times of its offers
  }
}

/** The successor of this key that an earlier process kept; without one, this key. */
async function successor(/** @type {Uint8Array} */ enrolled, /** @type {import("./disk.js").Disk | null} */ disk) {
  const bytes = await disk?.get(SUCCESSOR);
  try {
    const { of, key } = bytes ? JSON.parse(text(bytes)) : { of: "", key: "" };
    const now = of === hex(enrolled) ? fromHex(key) : enrolled;
    return now.length === KEY_BYTES ? now : enrolled;
  } catch {
    return enrolled; // a damaged file: the next offer has the succession again
  }
}
