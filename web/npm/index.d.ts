/** A device of a federated task, in a browser or in Node. */

/** What `join` takes. Either `token`, or `broker` and `name`. */
export interface JoinOptions {
  /** The token that `device-runtime device add NAME --websockets` prints; without `--websockets` for Node alone. */
  token?: string;
  /** The broker's URL: wss://.., ws://..; in Node also mqtts://.. and mqtt://... With a token: another way to its broker. */
  broker?: string;
  /** The device's name, where there is no token; by default the user of the URL. */
  name?: string;
  /** The task to join; by default whichever there is. */
  task?: string;
  /** Where the device keeps its samples and what waits to be sent: a database's name in a browser, a folder in Node. */
  state?: string;
  /**
   * The samples to begin with, label and raw values, or a function that gives them once the task is known. They are
   * stored before the first round, unless some are stored already.
   */
  samples?: Iterable<Sample> | ((task: TaskDescription) => Iterable<Sample> | Promise<Iterable<Sample>>);
  /** Threads to compute on; 0, the default: as many as the page may use, up to four. */
  threads?: number;
  /** End when the task is done. */
  untilDone?: boolean;
  /** Allow a broker without TLS on another machine. */
  insecure?: boolean;
  /** Called with each event, in order. */
  on?: (event: DeviceEvent) => void;
}

/** A label, and the raw values of one sample or of several. */
export type Sample = readonly [label: string | number, values: Iterable<number> & ArrayLike<number>];

/** The model that a task trains, its labels in order, and the shape of a sample, such as [1, 8, 8]. */
export interface TaskDescription {
  name: string;
  labels: string[];
  shape: number[];
}

/** Samples that are kept here by label: those that train, and those held out to judge the model. */
export interface LabelCount {
  label: string;
  training: number;
  held: number;
}

/** A label, and how sure the model is of it, from 0 to 1. */
export interface Guess {
  label: string;
  share: number;
}

/** Takes part in a task until it leaves. Samples stay on this machine: no message has them. */
export class TaskDevice {
  private constructor();
  readonly name: string;
  /** Resolves when the device has ended, rejects with what ended it. */
  readonly ended: Promise<void>;
  /** Resolves once a task is offered and its model is here. */
  task(): Promise<TaskDescription>;
  /**
   * Keep one sample or several of a label, raw, as the task takes them; they are there after a restart. Rejects for a
   * label that is not of the task, and for another number of values.
   */
  add(label: string | number, values: ArrayLike<number>): Promise<void>;
  /** Delete the samples of a label, or all. */
  clear(label?: string): Promise<void>;
  /** The samples that are kept, for each label of the task. */
  counts(): Promise<LabelCount[]>;
  /** What the newest model takes one raw sample for, the likeliest label first; null while there is no model. */
  predict(values: ArrayLike<number>): Promise<Guess[] | null>;
  /** Pause the work until `resume` is called for the same reason. */
  pause(reason?: string): void;
  resume(reason?: string): void;
  /** Say goodbye and end; what was not acknowledged is sent by the next `join` with the same `state`. */
  leave(): Promise<void>;
}

/** Join; resolves before the broker is reached, which is tried until it answers. Rejects for options that cannot be. */
export function join(options: JoinOptions): Promise<TaskDevice>;

/** What a device reports. Bytes, seconds, joules; rounds count from 1. */
export type DeviceEvent =
  | { type: "log"; level: "info" | "warning" | "error"; text: string }
  | { type: "link"; connected: boolean; reason: string }
  | { type: "task"; manifest: any; engine: string; why: string; cores: number; memoryBytes: number; forwardS: number; examples: number }
  | { type: "offer"; task: string; run: string; round: number; deadlineS: number; remainingS: number; done: boolean; title: string; about: string; ask: string }
  | { type: "fetching"; have: number; size: number }
  | { type: "plan"; round: number; kind: string; label: string; cost: any; rows: any[]; straggler: boolean; verdict: string; reasons: string[] }
  | { type: "progress"; round: number; label: string; share: number; seconds: number; leftS: number }
  | { type: "made"; round: number; kind: string; form: string; label: string; bytesUp: number; values: number; seconds: number; energyJ: number; numExamples: number; trainLoss: number; leastDevices: number }
  | { type: "ended"; round: number }
  | { type: "receipt"; round: number; kind: string; status: string; reason: string }
  | { type: "evaluated"; round: number; right: number; count: number; loss: number; otherHead: boolean }
  | { type: "traffic"; up: number; down: number };
