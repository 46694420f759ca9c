/** The tree of MQTT topics, in which each device has its own branch (broker/wire/topics.py). */
import { fromHex, hex } from "./bytes.js";
import { TopicError } from "./errors.js";

export const ROOT = "fl/v1";
/** The offers of every task. */
export const OFFERS = `${ROOT}/all/round/+`;
/** The ends of topics of compact messages. */
export const COMPACT_TOPICS = ["up/c", "dn/n"];

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
const SHA = /^[0-9a-f]{64}$/;
const INDEX = /^(-1|[0-9]{1,8})$/;

/** Returns the name. Throws TopicError unless it is 1 to 64 letters, digits, dots, dashes, underscores. */
export const checkDevice = (name) => checked("device", name);
/** Returns the name of a task. Throws TopicError as `checkDevice`. */

/** Whether this is a valid name of a device or a task. @param {string} name */
export const isName = (name) => NAME.test(name);

function checked(of, name) {
  if (!isName(name)) {
    throw new TopicError(
      `${of} name '${name}': use 1 to 64 letters, digits, '.', '_' or '-', first a letter or digit`,
    );
  }
  return name;
}

/** The topic of a task's retained offer. @param {string} task */
export const offer = (task) => `${ROOT}/all/round/${task}`;
/** @param {string} topic */
export const isOffer = (topic) => topic.startsWith(offer(""));
/** @param {string} device @param {string} leaf */
export const up = (device, leaf) => `${ROOT}/d/${device}/up/${leaf}`;
/** @param {string} device @param {string} leaf */
export const down = (device, leaf) => `${ROOT}/d/${device}/dn/${leaf}`;
/** The leaf of one block; index -1 says that the sender does not have the blob. @param {Uint8Array} sha */
export const block = (sha, index) => `block/${hex(sha)}/${index}`;

/**
 * The address of a topic below `fl/v1/d/`; a block also has `sha` and `index`. Throws TopicError for anything else.
 * @param {string} topic @returns {{ device: string, leaf: string, sha: Uint8Array, index: number }}
 */
export function parse(topic) {
  const parts = topic.split("/");
  const other = () => new TopicError(`'${topic}' is not a device topic`);
  const [root, version, d, name, way, leaf, sha, index] = parts;
  if (parts.length < 6 || `${root}/${version}/${d}` !== `${ROOT}/d` || !["up", "dn"].includes(way)) throw other();
  const device = checkDevice(name);
  if (parts.length === 6) return { device, leaf, sha: new Uint8Array(), index: 0 };
  if (parts.length === 8 && leaf === "block" && SHA.test(sha) && INDEX.test(index)) {
    return { device, leaf, sha: fromHex(sha), index: Number(index) };
  }
  throw other();
}

/** Whether a subscription, with `+` and `#`, includes this topic. */
export function matches(subscription, topic) {
  const pattern = subscription.split("/");
  const parts = topic.split("/");
  for (const [at, part] of pattern.entries()) {
    if (part === "#") return true;
    if (at >= parts.length || (part !== "+" && part !== parts[at])) return false;
  }
  return pattern.length === parts.length;
}
