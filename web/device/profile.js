/** This device as the cost model knows it: what its host says, what was measured, what was learnt. */

/** Bytes per second, until transfers were seen. */
const UNMEASURED_LINK = { up: 1e6, down: 4e6, source: "assumed until seen" };
/** Watts, where nobody says. */
const UNKNOWN_POWER = { idleW: 2, loadW: 8, source: "assumed: no profile", uncertainty: 1 };

/**
 * The machine or browser that a device is in. Bytes of this process: `limitBytes` is what it may reach,
 * `residentBytes` what it holds now, NaN where nobody says. `power`, where it is known, as in a profile.
 * @typedef {{name: string, cores: number, totalBytes: number, limitBytes: () => number,
 *   residentBytes: () => number, battery?: () => {percent: number, plugged: boolean} | null,
 *   power?: import("./cost.js").Profile["power"]}} Host
 */

/**
 * @param {Host} host @param {import("./calibration.js").Learnt} learnt @param {string} engine
 * @param {import("./link_speed.js").LinkSpeed} link @returns {import("./cost.js").Profile}
 */
export function profileOf(host, learnt, engine, link) {
  const residentBytes = host.residentBytes();
  return {
    name: host.name,
    cores: host.cores,
    memory: {
      totalBytes: host.totalBytes,
      limitBytes: host.limitBytes(),
      residentBytes: Number.isNaN(residentBytes) ? 0 : residentBytes,
    },
    speed: learnt.speed,
    bandwidth: link.over(UNMEASURED_LINK),
    power: host.power ?? UNKNOWN_POWER,
    battery: host.battery?.() ?? null,
    engine,
    corrections: learnt.corrections,
    growth: learnt.growth,
  };
}
