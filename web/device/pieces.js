/**
 * Joins the pieces of messages that are larger than a broker's packets (broker/wire/pieces.py). A page cuts none: what it
 * sends is as large as the aggregator asked for.
 */

const LABEL = /^([0-9]{1,8}|[a-z]{1,16})\.([0-9]{1,3})\.([0-9]{1,3})$/;
const LEAVES = new Set(["get", "sum", "task", "n", "receipt"]);
const MOST_PIECES = 512;
/** Messages that may be incomplete at a time; the oldest is dropped. */
const MOST_OPEN = 32;

/** Whether a message on this topic is a piece. @param {string} topic */
export function isPiece(topic) {
  const parts = topic.split("/");
  return parts.length === 8 && parts[5] === "block" && LABEL.test(parts[7]);
}

export class PieceJoiner {
  /** @type {Map<string, (Uint8Array | undefined)[]>} */
  #open = new Map();

  /**
   * Take a piece; returns the whole message when this was its last one, else null.
   * @param {string} topic @param {Uint8Array} payload
   */
  take(topic, payload) {
    const parts = topic.split("/");
    const [, label, k, n] = parts[7].match(LABEL) ?? [];
    const [at, count] = [Number(k), Number(n)];
    const block = /^[0-9]+$/.test(label);
    if (!(at < count && count <= MOST_PIECES && (block || LEAVES.has(label)))) return null;
    const key = `${parts.slice(0, 7).join("/")}/${label}`;
    let pieces = this.#open.get(key);
    if (pieces?.length !== count) pieces = new Array(count).fill(undefined);
    pieces[at] = payload;
    this.#open.delete(key);
    if (pieces.every((piece) => piece !== undefined)) {
      const branch = parts.slice(0, 5).join("/");
      return { topic: block ? key : `${branch}/${label}`, payload: joined(pieces) };
    }
    this.#open.set(key, pieces);
    if (this.#open.size > MOST_OPEN) this.#open.delete(this.#open.keys().next().value);
    return null;
  }
}

/** @param {Uint8Array[]} pieces */
function joined(pieces) {
  const whole = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
