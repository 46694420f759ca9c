/** 16-bit numbers: IEEE 754 binary16, rounded to the nearest, ties to even. */

const DOUBLE = new Float64Array(1);
const WORDS = new Uint32Array(DOUBLE.buffer); // the lower half first, as in every browser
/** The smallest number that is rounded to infinity. */
const TOO_LARGE = 65520;

/** The number that these bits encode. @param {number} bits */
export function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}

/** The bits of a number, rounded. @param {number} number @returns {number} */
export function toHalf(number) {
  DOUBLE[0] = number;
  const sign = (WORDS[1] >>> 16) & 0x8000;
  const size = Math.abs(number);
  if (Number.isNaN(number)) return 0x7e00;
  if (size >= TOO_LARGE) return sign | 0x7c00;
  const exponent = Math.max(((WORDS[1] >>> 20) & 0x7ff) - 1023, -14);
  const steps = size * 2 ** (10 - exponent); // exact
  const below = Math.floor(steps);
  const rest = steps - below;
  const up = rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? 1 : 0;
  return sign | (((exponent + 14) << 10) + below + up); // a fraction that is rounded up to 1 carries into the exponent
}
