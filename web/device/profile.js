/** Makes this device's profile from its host and its calibration. Part of device/engine/profiling.py. */

/** Bytes per second that are assumed until transfers were seen. */
const UNMEASURED_LINK = { up: 1e6, down: 4e6, source: "assumed until seen" };
/** Watts that are assumed if the host does not tell. */
const UNKNOWN_POWER = { idleW: 2, loadW: 8, source: "assumed: no profile", uncertainty: 1 };

/**
 * The machine or browser that runs a device. Bytes of this process: `limitBytes` is the most that it may hold,
 * `residentBytes` what it holds now, NaN if that is not known. `power`, if it is known, as in a profile.
 * @typedef {{name: string, cores: number, totalBytes: number, limitBytes: () => number,
 *   residentBytes: () => number, battery?: () => {percent: number, plugged: boolean} | null,
 *   power?: import("./cost.js").Profile["power"]}} Host
 */

/**
 * @param {Host} host @param {import("./calibration.js").Corrections} calibration @param {string} engine
 * @param {import("./link_speed.js").LinkSpeed} link @returns {import("./cost.js").Profile}
 */
export function profileOf(host, calibration, engine, link) {
  const residentBytes = host.residentBytes();
  return {
    name: host.name,
    cores: host.cores,
    memory: {
      totalBytes: host.totalBytes,
      limitBytes: host.limitBytes(),
      residentBytes: Number.isNaN(residentBytes) ? 0 : residentBytes,
    },
    speed: calibration.speed,
    bandwidth: link.over(UNMEASURED_LINK),
    power: host.power ?? UNKNOWN_POWER,
    battery: host.battery?.() ?? null,
    engine,
    corrections: calibration.corrections,
    growth: calibration.growth,
  };
}
