/** Rounds numbers and writes them as Python does: ties go to the even digit. */

/** The nearest whole number. @param {number} value @returns {number} */
export function whole(value) {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

/**
 * A number with so many decimals, as f"{value:.{digits}f}".
 * @param {number} value @param {number} digits at most 3 @returns {string}
 *
 * toFixed rounds the exact value, but ties away from zero. There is a tie only if value * 10**digits ends in exactly
 * one half, and then this product has no rounding error.
 */
export function fixed(value, digits) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value < 0) return `-${fixed(-value, digits)}`;
  const scale = 10 ** digits;
  const isTie = (2 ** (digits + 1) * value) % 1 === 0 && (scale * value) % 1 === 0.5;
  return (isTie ? whole(scale * value) / scale : value).toFixed(digits);
}

/** A share in percent, as f"{share:.0%}". @param {number} share @returns {string} */
export function percent(share) {
  return `${fixed(100 * share, 0)}%`;
}

/** A number with six significant digits, as f"{value:g}". @param {number} value @returns {string} */
export const general = (value) => significant(value, 6);

/** A number with so many significant digits, as f"{value:.{most}g}". @param {number} value @param {number} most */
export function significant(value, most) {
  if (value === 0 || !Number.isFinite(value)) return value === 0 ? "0" : fixed(value, 0);
  const [digits, exponent] = value.toExponential(most - 1).split("e");
  const power = Number(exponent);
  const bare = (/** @type {string} */ text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power < -4 || power >= most) {
    const sign = power < 0 ? "-" : "+";
    return `${bare(digits)}e${sign}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  return bare(Number(value.toPrecision(most)).toFixed(Math.max(0, most - 1 - power)));
}
