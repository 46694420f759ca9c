// Finds one spoken word in the sound of a microphone, and cuts out the seconds with the word in the middle, so that it
// matters little when somebody speaks. Speech Commands was cut in the same way, to the loudest second (Warden 2018).

const SETTLE_S = 0.15; // skipped after the microphone is opened, because its first samples are empty
const FRAME_S = 0.02;
const ONSET = 3; // consecutive loud frames that begin a word: a shorter sound is a click
const ABOVE = 4; // a frame is loud if it is this many times louder than the quietest: 12 dB
const LEAST = 0.002; // of full scale, -54 dB: no frame that is quieter is loud
const PATIENCE_S = 4; // to wait for somebody to speak
const FULL = 0.999; // of full scale: a sample that reaches it was clipped
const CUT = 0.001; // the share of samples that may be clipped
const DARK_DB = -60; // the level that is shown as 0

/**
 * @typedef {{samples: Float32Array, fault: "" | "nothing" | "quiet" | "loud"}} Heard samples of -32768 to 32767;
 *   nothing: not even noise; quiet: nothing stood out from the noise; loud: too much of it was clipped
 */
export class KeywordCapture {
  /** @param {number} seconds to cut out @param {number} rate Hz */
  constructor(seconds, rate) {
    this._rate = rate;
    this._wanted = Math.round(seconds * rate);
    this._frame = Math.round(FRAME_S * rate);
    this._skip = Math.round(SETTLE_S * rate);
    this._end = Math.round(PATIENCE_S * rate) + this._wanted;
    this._kept = new Float32Array(this._end);
    this._count = 0;
    /** The loudness of each frame. @type {number[]} */
    this._loudness = [];
    this._onset = -1;
  }

  /** Whether it has heard enough. */
  get done() {
    return this._count >= this._end;
  }

  /** Whether somebody has begun to speak. */
  get begun() {
    return this._onset >= 0;
  }

  /** The present level of the sound, 0 to 1. */
  get level() {
    return Math.max(0, 1 - decibels(this._loudness.at(-1) ?? 0) / DARK_DB);
  }

  /** The part of PATIENCE_S that has passed, 0 to 1. */
  get waited() {
    return Math.min(1, this._count / (PATIENCE_S * this._rate));
  }

  /** Take the next samples. @param {Float32Array} block from -1 to 1 */
  hear(block) {
    const skipped = Math.min(this._skip, block.length);
    this._skip -= skipped;
    const part = block.subarray(skipped, skipped + this._end - this._count);
    this._kept.set(part, this._count);
    this._count += part.length;
    while ((this._loudness.length + 1) * this._frame <= this._count) this._listen();
  }

  _listen() {
    const begin = this._loudness.length * this._frame;
    this._loudness.push(loudness(this._kept.subarray(begin, begin + this._frame)));
    const loud = Math.max(LEAST, ABOVE * Math.min(...this._loudness));
    if (this.begun || this._loudness.length < ONSET || !this._loudness.slice(-ONSET).every((level) => level > loud)) return;
    this._onset = this._loudness.length - ONSET;
    this._end = Math.min(this._end, this._onset * this._frame + this._wanted);
    this._end = Math.max(this._end, this._wanted);
  }

  /** The loudest seconds, with the loud part in the middle. @returns {Heard} */
  cut() {
    const frames = Math.ceil(this._wanted / this._frame);
    const quietest = Math.min(...this._loudness);
    const above = this._loudness.map((level) => level - quietest);
    const first = loudest(above, frames);
    const middle = balance(above.slice(first, first + frames)) + first;
    const begin = Math.round(middle * this._frame - this._wanted / 2);
    const within = Math.max(0, Math.min(this._count - this._wanted, begin));
    const samples = this._kept.slice(within, within + this._wanted);
    return { samples: samples.map((value) => 32768 * value), fault: this._fault(samples) };
  }

  _fault(samples) {
    if (samples.every((value) => value === 0)) return "nothing";
    if (!this.begun) return "quiet";
    return samples.filter((value) => Math.abs(value) >= FULL).length > CUT * samples.length ? "loud" : "";
  }
}

const decibels = (value) => 20 * Math.log10(Math.max(value, 1e-6));

/** The standard deviation, because microphones may have an offset. @param {Float32Array} samples */
function loudness(samples) {
  const mean = samples.reduce((sum, value) => sum + value, 0) / samples.length;
  return Math.sqrt(samples.reduce((sum, value) => sum + (value - mean) ** 2, 0) / samples.length);
}

/** The first of the `width` consecutive values that have the largest sum. @param {number[]} values */
function loudest(values, width) {
  let sum = values.slice(0, width).reduce((all, value) => all + value, 0);
  let [best, first] = [sum, 0];
  for (let end = width; end < values.length; end++) {
    sum += values[end] - values[end - width];
    if (sum > best) [best, first] = [sum, end - width + 1];
  }
  return first;
}

/** The centre of gravity of the values. @param {number[]} values */
function balance(values) {
  const all = values.reduce((sum, value) => sum + value, 0);
  return all > 0 ? values.reduce((sum, value, place) => sum + value * (place + 0.5), 0) / all : values.length / 2;
}
