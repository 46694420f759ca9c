/** A browser's rules for work: pauses the device while its page is hidden, the battery is low, or data is saved. */

const LOW = 0.2;

export const HIDDEN = "the page is hidden";
export const BATTERY = "the battery is low";
export const SAVING = "the browser is set to save data";
export const OWNER = "you paused it";

/**
 * @typedef {{pause: (why: string) => void, resume: (why: string) => void,
 *   said: (what: "battery" | "data", text: string) => void,
 *   battery: (percent: number, plugged: boolean) => void}} RulesListener said: shows a text about battery or data
 */
export class PageWorkRules {
  /** @param {RulesListener} listener */
  constructor(listener) {
    this._listener = listener;
    this._lock = null;
    this._asking = false;
    this._training = false;
    document.addEventListener("visibilitychange", () => this._seen());
    this._seen();
    this._battery();
    this._data();
  }

  /** Keep the screen on during a round's work, if the browser allows it. @param {boolean} training */
  async training(training) {
    this._training = training;
    if (!this._awake) return this._release();
    if (this._lock || this._asking || !navigator.wakeLock) return undefined;
    this._asking = true;
    try {
      this._lock = await navigator.wakeLock.request("screen");
      this._lock.addEventListener("release", () => (this._lock = null));
    } catch {
      this._lock = null; // the browser refused, as for a low battery: the screen goes off as usual
    }
    this._asking = false;
    return this._awake ? undefined : this._release();
  }

  get _awake() {
    return this._training && !document.hidden;
  }

  async _release() {
    await this._lock?.release();
    this._lock = null;
  }

  _seen() {
    if (document.hidden) this._listener.pause(HIDDEN);
    else this._listener.resume(HIDDEN);
    this.training(this._training);
  }

  /** Watch the battery, if the browser gives access to it. */
  async _battery() {
    const battery = await /** @type {any} */ (navigator).getBattery?.().catch(() => null);
    if (!battery) return this._listener.said("battery", "This browser does not tell how full the battery is: plug in, or pause, when it runs low.");
    const look = () => {
      const low = !battery.charging && battery.level < LOW;
      if (low) this._listener.pause(BATTERY);
      else this._listener.resume(BATTERY);
      this._listener.battery(100 * battery.level, battery.charging);
      this._listener.said("battery", `Battery ${Math.round(100 * battery.level)} %${battery.charging ? ", charging" : ""}. Below ${100 * LOW} % it pauses until it is plugged in.`);
    };
    for (const change of ["levelchange", "chargingchange"]) battery.addEventListener(change, look);
    return look();
  }

  /** Watch whether data is to be saved, if the browser tells. */
  _data() {
    const { connection } = /** @type {any} */ (navigator);
    if (!connection) return this._listener.said("data", "This browser does not tell whether data is to be saved: pause while you pay for data.");
    const look = () => {
      if (connection.saveData) this._listener.pause(SAVING);
      else this._listener.resume(SAVING);
      const mobile = connection.type === "cellular" ? "This is a mobile network, which may cost money. " : "";
      this._listener.said("data", `${mobile}It pauses while the browser is set to save data${connection.saveData ? ", as it is now" : ""}.`);
    };
    connection.addEventListener("change", look);
    return look();
  }
}

/** Whether the browser is set to save data. @returns {boolean} */
export const savesData = () => Boolean(/** @type {any} */ (navigator).connection?.saveData);

/** Ask the browser not to delete what is stored when it runs short of room. @returns {Promise<boolean>} */
export async function persist() {
  return (await navigator.storage?.persist?.().catch(() => false)) ?? false;
}
