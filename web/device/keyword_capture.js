// One word out of what a microphone hears: when it was said, and the stretch of sound with it in the middle. So
// it matters little when somebody speaks. Speech Commands was cut alike, to the loudest second (Warden 2018).

const SETTLE_S = 0.15; // after the microphone was opened: its first samples are of nothing
const FRAME_S = 0.02;
const ONSET = 3; // frames one after the other that are loud: what is shorter is a click
const ABOVE = 4; // times the quietest frame: 12 dB
const LEAST = 0.002; // of full scale, -54 dB: what is quieter is nothing said
const PATIENCE_S = 4; // until somebody speaks
const FULL = 0.999; // of full scale: what reaches it was cut off
const CUT = 0.001; // the share of samples that may be
const DARK_DB = -60; // shown as no level at all

/**
 * @typedef {{samples: Float32Array, fault: "" | "nothing" | "quiet" | "loud"}} Heard samples of -32768 to 32767;
 *   nothing: not even noise; quiet: nothing stood out from the noise; loud: some of it was cut off
 */
export class Hearing {
  /** @param {number} seconds of the stretch that is wanted @param {number} rate Hz */
  constructor(seconds, rate) {
    this._rate = rate;
    this._wanted = Math.round(seconds * rate);
    this._frame = Math.round(FRAME_S * rate);
    this._skip = Math.round(SETTLE_S * rate);
    this._end = Math.round(PATIENCE_S * rate) + this._wanted;
    this._kept = new Float32Array(this._end);
    this._count = 0;
    /** How loud each frame was. @type {number[]} */
    this._loudness = [];
    this._onset = -1;
  }

  /** Whether it has all that it waits for. */
  get done() {
    return this._count >= this._end;
  }

  /** Whether somebody has begun to speak. */
  get begun() {
    return this._onset >= 0;
  }

  /** How loud it is now, 0 to 1. */
  get level() {
    return Math.max(0, 1 - decibels(this._loudness.at(-1) ?? 0) / DARK_DB);
  }

  /** The share of its patience that is used up, 0 to 1. */
  get waited() {
    return Math.min(1, this._count / (PATIENCE_S * this._rate));
  }

  /** What comes next. @param {Float32Array} block of -1 to 1 */
  hear(block) {
    const skipped = Math.min(this._skip, block.length);
    this._skip -= skipped;
    const taken = block.subarray(skipped, skipped + this._end - this._count);
    this._kept.set(taken, this._count);
    this._count += taken.length;
    while ((this._loudness.length + 1) * this._frame <= this._count) this._listen();
  }

  _listen() {
    const begin = this._loudness.length * this._frame;
    this._loudness.push(loudness(this._kept.subarray(begin, begin + this._frame)));
    const loud = Math.max(LEAST, ABOVE * Math.min(...this._loudness));
    if (this.begun || this._loudness.length < ONSET || !this._loudness.slice(-ONSET).every((one) => one > loud)) return;
    this._onset = this._loudness.length - ONSET;
    this._end = Math.min(this._end, this._onset * this._frame + this._wanted);
    this._end = Math.max(this._end, this._wanted);
  }

  /** The loudest stretch, and what is loud in its middle. @returns {Heard} */
  cut() {
    const frames = Math.ceil(this._wanted / this._frame);
    const quietest = Math.min(...this._loudness);
    const above = this._loudness.map((one) => one - quietest);
    const first = loudest(above, frames);
    const middle = balance(above.slice(first, first + frames)) + first;
    const begin = Math.round(middle * this._frame - this._wanted / 2);
    const within = Math.max(0, Math.min(this._count - this._wanted, begin));
    const samples = this._kept.slice(within, within + this._wanted);
    return { samples: samples.map((value) => 32768 * value), fault: this._fault(samples) };
  }

  _fault(samples) {
    if (samples.every((one) => one === 0)) return "nothing";
    if (!this.begun) return "quiet";
    return samples.filter((one) => Math.abs(one) >= FULL).length > CUT * samples.length ? "loud" : "";
  }
}

const decibels = (value) => 20 * Math.log10(Math.max(value, 1e-6));

/** The standard deviation: microphones may have an offset. @param {Float32Array} samples */
function loudness(samples) {
  const mean = samples.reduce((sum, one) => sum + one, 0) / samples.length;
  return Math.sqrt(samples.reduce((sum, one) => sum + (one - mean) ** 2, 0) / samples.length);
}

/** Where the stretch of so many values begins whose sum is the largest. @param {number[]} values */
function loudest(values, width) {
  let sum = values.slice(0, width).reduce((all, one) => all + one, 0);
  let [best, first] = [sum, 0];
  for (let end = width; end < values.length; end++) {
    sum += values[end] - values[end - width];
    if (sum > best) [best, first] = [sum, end - width + 1];
  }
  return first;
}

/** Where the values have their centre of gravity. @param {number[]} values */
function balance(values) {
  const all = values.reduce((sum, one) => sum + one, 0);
  return all > 0 ? values.reduce((sum, one, place) => sum + one * (place + 0.5), 0) / all : values.length / 2;
}
