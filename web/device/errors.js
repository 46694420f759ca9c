/** Errors of the device, with the names that Python uses. Each text is one line: what went wrong, where, what to do. */

export class DeviceError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** A payload that is not the message it claims to be. */
export class MessageError extends DeviceError {}
/** An offer that is not from the aggregator that this device is enrolled with. */
export class NotTrusted extends MessageError {}
/** The round before is not known here as the sender knows it: ask for the full offer. */
export class UnknownRoundBefore extends MessageError {}
/** A topic outside the tree, or a name of a device or task that cannot be part of one. */
export class TopicError extends DeviceError {}
/** A token that cannot be used. */
export class EnrolmentError extends DeviceError {}
/** A broker URL that cannot be used, or that would send a password in the clear. */
export class UrlError extends DeviceError {}
/** Nothing answers at the address, or not as an MQTT broker. Trying again later may help. */
export class BrokerUnreachable extends DeviceError {}
/** The broker refused: wrong password, or a topic that is not ours. */
export class BrokerRefused extends DeviceError {}

/** A blob that is missing, damaged or too large, or a disk that cannot hold it. */
export class BlobError extends DeviceError {}
/** One block that does not fit its blob: wrong length, or a number out of range. Asking again may help. */
export class BlockError extends BlobError {}
/** A disk that is full or fails. */
export class DiskError extends DeviceError {}

/** Base class of errors about models. */
export class ModelError extends DeviceError {}
/** Tensors that are malformed, or not the ones expected. */
export class TensorError extends ModelError {}
/** A bundle that is missing, damaged, of another format, or inconsistent. */
export class BundleError extends ModelError {}
/** An engine that is missing, refuses a graph, or is given the wrong arrays. */
export class EngineError extends ModelError {}
/** The engine's program, or a part of it, could not be loaded. Trying again later may help. */
export class EngineUnloaded extends EngineError {}
/** A graph that a bundle does not have, or a device cannot run. */
export class MissingGraph extends ModelError {}

/** A kind of update that this version does not have, or settings that it does not take. */
export class KindError extends DeviceError {}
/** A mask or a masked update that is not valid. */
export class MaskError extends DeviceError {}
/** A word that names no codec. */
export class CodecError extends DeviceError {}
/** The deadline of a round would be missed. */
export class OutOfTime extends DeviceError {}
/** Directions of a generator that this version does not have. */
export class UnknownGenerator extends DeviceError {}

/** Local data that is missing, unreadable, or not of the task. */
export class DataError extends DeviceError {}
/** Work would exceed the memory this device may use and was not started, or has exceeded it. */
export class OutOfMemory extends DeviceError {}
/** The base model made by replaying steps is not the aggregator's. It is fetched anew. */
export class StaleBase extends DeviceError {}
/** The base model cannot be made from what the offer names, even from its checkpoint. */
export class UnusableBase extends DeviceError {}
/** One round cannot be worked on; the next one may. */
export class RoundLeftOut extends DeviceError {}
/** The device was told to stop while it trained: the work in progress is given up. */
export class WorkStopped extends DeviceError {}

/** The message of any error, without line breaks, at most `limit` characters. */
export function oneLine(error, limit = 300) {
  const message = String(error?.message ?? error).split(/\s+/).filter(Boolean).join(" ");
  const words = message || error?.name || "Error";
  return words.length <= limit ? words : `${words.slice(0, limit - 3)}...`;
}
