/** Whose offers this device acts on, as client/connection/trust.py. */
import { fromHex, hex, text, utf8 } from "./bytes.js";
import { MessageError, NotTrusted } from "./errors.js";
import { Receipt, decode, offerIn } from "./messages.js";
import { Pact, mapped, publicOf } from "./session_mac.js";
import { KEY_BYTES, Verifier } from "./signing.js";
import { WORD_BYTES, decodeNext, parted } from "./compact_round.js";

/** Runs of which the latest round is remembered. */
const RUNS = 64;

/** Tasks of which the latest offer's time is remembered. */
const TASKS = 64;
/** On the disk: when the latest offer of each task was issued. */
const ISSUED = "issued";

/** And the aggregator's key, where another has followed on the one that the device was enrolled with. */
const SUCCESSOR = "successor";

/** So many random bytes. @param {number} size */
const drawn = (size) => crypto.getRandomValues(new Uint8Array(size));

/** When the latest offer of each task was issued, by one aggregator's key; kept on a disk, if there is one. */
class Issued {
  #key;
  #disk;
  /** @type {Map<string, number>} */
  #known = new Map();

  /** With what an earlier life kept. Of another key, or damaged, it counts for nothing. */
  static async open(/** @type {Uint8Array} */ key, /** @type {import("./disk.js").Disk | null} */ disk) {
    const issued = new Issued(key, disk);
    const kept = await disk?.get(ISSUED);
    try {
      const { key: of, issued: known } = kept ? JSON.parse(text(kept)) : { key: "", issued: {} };
      if (of === issued.#key) issued.#known = new Map(Object.entries(known).filter((one) => Number.isInteger(one[1])));
    } catch {} // then old offers cannot be told from new ones
    return issued;
  }

  /** They are by this key from now on. @param {Uint8Array} key */
  async succeed(key) {
    this.#key = hex(key);
    await this.#write();
  }

  /** @private */
  constructor(key, disk) {
    this.#key = hex(key);
    this.#disk = disk;
  }

  /** Seconds since 1970; 0 where no offer of the task is known. @param {string} task */
  latest(task) {
    return this.#known.get(task) ?? 0;
  }

  /** An offer of this time is taken. Rejects with DiskError. @param {string} task @param {number} issued */
  async note(task, issued) {
    if (issued <= this.latest(task)) return;
    this.#known.delete(task);
    this.#known.set(task, issued);
    while (this.#known.size > TASKS) this.#known.delete(this.#known.keys().next().value ?? "");
    await this.#write();
  }

  async #write() {
    const kept = { key: this.#key, issued: Object.fromEntries(this.#known) };
    await this.#disk?.put(ISSUED, utf8(JSON.stringify(kept)));
  }
}

/**
 * Reads offers. With the key of an aggregator (32 bytes) only that one's, and none older than one taken. Without a
 * key any offer is taken, signed or not.
 */
export class Trust {
  /** To say in a hello, so that the aggregator need not sign what it says in few bytes. */
  key = new Uint8Array();
  #verifier;
  #pact;
  #issued;
  #signs = false;
  /** The disk, the key that it was enrolled with, and its own half of the pact. */
  #enrolled;
  #disk;
  #own;
  #rounds = new Map();

  /**
   * `disk` keeps which offer was the latest, for other lives; `signs`: the device signs its hellos, so that its
   * aggregator puts a word on its receipts. Rejects with NotTrusted for a key that is none.
   * @param {Uint8Array} key empty: without @param {(size: number) => Uint8Array} [draw]
   * @param {import("./disk.js").Disk | null} [disk] @param {boolean} [signs]
   */
  static async open(key, draw = drawn, disk = null, signs = false) {
    if (!key.length) return new Trust(null, null, null);
    const now = await successor(key, disk);
    const trust = new Trust(await Verifier.open(now), null, await Issued.open(now, disk));
    const own = draw(KEY_BYTES);
    [trust.#signs, trust.#enrolled, trust.#disk, trust.#own] = [signs, key, disk, own];
    try {
      trust.key = await publicOf(own);
    } catch {
      return trust; // no X25519 in this browser: it is told whole offers
    }
    trust.#pact = await Pact.agreed(own, mapped(now));
    return trust;
  }

  /** @private */
  constructor(verifier, pact, issued) {
    this.#verifier = verifier;
    this.#pact = pact;
    this.#issued = issued;
  }

  /** That this device says this there, in this run. Only where it has said a `key`. @returns {Promise<Uint8Array>} */
  word(topic, run, payload) {
    return this.#pact.word(topic, run, payload);
  }

  /** The receipt that came on this topic. Rejects with MessageError as `offer`. */
  async receipt(topic, payload) {
    if (!(this.#signs && this.#pact)) return decode(Receipt, payload);
    const said = payload.slice(0, -WORD_BYTES);
    if (!(await this.#pact.holds(payload.slice(-WORD_BYTES), topic, "", said))) {
      throw new NotTrusted(
        `receipt on ${topic} refused: it is not said to this device by the aggregator that it is enrolled with`,
      );
    }
    return decode(Receipt, said);
  }

  /** The next round of this run that came on this topic. Rejects with MessageError as `offer`. */
  async next(topic, run, payload) {
    const { said, word } = parted(payload);
    if (!this.#verifier) return decodeNext(said);
    if (!(await this.#pact?.holds(word, topic, run, said))) {
      throw new NotTrusted(
        `next round on ${topic} refused: it is not said to this device, for run '${run}', by the aggregator ` +
          "that it is enrolled with",
      );
    }
    const made = decodeNext(said);
    this.#rounds.set(run, Math.max(this.#rounds.get(run) ?? 0, made.round));
    return made;
  }

  /**
   * The offer that came on this topic. Rejects with MessageError, which says why it is not to be acted on. Rounds
   * of a run only go up, and so does the time of issue: an earlier one is what somebody has kept, and sends again. A
   * round that is `retained` says no more than that there is a task.
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

  /** The aggregator has another key, which the one before has signed: that alone counts from now on. */
  async #succeed(/** @type {Uint8Array} */ key) {
    if (this.#pact) this.#pact = await Pact.agreed(this.#own, mapped(key));
    await this.#disk?.put(SUCCESSOR, utf8(JSON.stringify({ of: hex(this.#enrolled), key: hex(key) })));
    await this.#issued.succeed(key); // the next life begins with the key that is kept, and reads its times
  }
}

/** The key that followed on this one, as an earlier life has kept it; else this one. */
async function successor(/** @type {Uint8Array} */ enrolled, /** @type {import("./disk.js").Disk | null} */ disk) {
  const kept = await disk?.get(SUCCESSOR);
  try {
    const { of, key } = kept ? JSON.parse(text(kept)) : { of: "", key: "" };
    const now = of === hex(enrolled) ? fromHex(key) : enrolled;
    return now.length === KEY_BYTES ? now : enrolled;
  } catch {
    return enrolled; // it is told again with the next offer
  }
}
