/** What can go wrong on a device, as Python names it. Each text is one line: what, where, what was expected. */

export class DeviceError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** A payload that is not the message it claims to be. */
export class MessageError extends DeviceError {}
/** An offer that is not from the aggregator that this device is enrolled with. */
export class NotTrusted extends MessageError {}
/** The round before is not known here as it was: ask for the whole offer. */
export class UnknownRoundBefore extends MessageError {}
/** A topic outside the tree, or a name that cannot stand in one. */
export class TopicError extends DeviceError {}
/** A token that cannot be used. */
export class EnrolmentError extends DeviceError {}
/** A broker URL that cannot be used, or that would send a password in the clear. */
export class UrlError extends DeviceError {}
/** Nothing answers at the address, or not as an MQTT broker. Trying again later may help. */
export class BrokerUnreachable extends DeviceError {}
/** The broker answered, and said no: wrong password, or a topic that is not ours. */
export class BrokerRefused extends DeviceError {}

/** A blob that is missing, damaged or too large, or a disk that cannot hold it. */
export class BlobError extends DeviceError {}
/** One block that does not fit its blob: wrong length, or a number out of range. Asking again may help. */
export class BlockError extends BlobError {}
/** A disk that does not do as it is told: it is full, or gone. */
export class DiskError extends DeviceError {}

/** Anything that is refused about models. */
export class ModelError extends DeviceError {}
/** Tensors that are malformed, or not the ones expected. */
export class TensorError extends ModelError {}
/** A bundle that is missing, damaged, of another format, or inconsistent. */
export class BundleError extends ModelError {}
/** An engine that is missing, refuses a graph, or is given the wrong arrays. */
export class EngineError extends ModelError {}
/** The engine's program, or a part of it, does not come. Trying again later may help. */
export class EngineUnloaded extends EngineError {}
/** A graph that a bundle does not have, or a device cannot run. */
export class MissingGraph extends ModelError {}

/** A kind of update that this version does not have, or settings that it does not take. */
export class KindError extends DeviceError {}
/** A word that names no codec. */
export class CodecError extends DeviceError {}
/** The deadline of a round would be missed. */
export class OutOfTime extends DeviceError {}
/** Directions of a generator that this version does not have. */
export class UnknownGenerator extends DeviceError {}

/** Local data that is missing, unreadable, or not of the task. */
export class DataError extends DeviceError {}
/** Data that is not taken, and why. */
export class Refused extends DeviceError {}
/** Work that would exceed, or has exceeded, the memory this device may use. */
export class OutOfMemory extends DeviceError {}
/** The base model, after its log was replayed, is not the aggregator's. It is fetched anew. */
export class StaleBase extends DeviceError {}
/** The base model of an offer cannot be made from what it names, from its checkpoint on. */
export class UnusableBase extends DeviceError {}
/** What is wrong with one round, and does not concern the next. */
export class LeftOut extends DeviceError {}
/** The round closed while its work stood still. */
export class RoundOver extends DeviceError {}
/** The device was told to stop while it trained: what it was at is given up. */
export class Stopped extends DeviceError {}

/** The message of any error, without line breaks, at most `limit` characters. */
export function oneLine(error, limit = 300) {
  const said = String(error?.message ?? error).split(/\s+/).filter(Boolean).join(" ");
  const words = said || error?.name || "Error";
  return words.length <= limit ? words : `${words.slice(0, limit - 3)}...`;
}
