/** When a browser's device works: not while its page is hidden, or the battery is low, or somebody said pause. */

const LOW = 0.2;

export const HIDDEN = "the page is hidden";
export const BATTERY = "the battery is low";
export const OWNER = "you paused it";

/**
 * @typedef {{pause: (why: string) => void, resume: (why: string) => void, said: (text: string) => void,
 *   battery: (percent: number, plugged: boolean) => void}} Ears said: what there is to know, in plain words
 */
export class Manners {
  /** @param {Ears} ears */
  constructor(ears) {
    this._ears = ears;
    this._lock = null;
    this._asking = false;
    this._training = false;
    this._said = {};
    document.addEventListener("visibilitychange", () => this._seen());
    this._seen();
    this._battery();
  }

  /** While a round is worked on the screen stays on, where the browser lets it. @param {boolean} training */
  async training(training) {
    this._training = training;
    if (!this._awake) return this._release();
    if (this._lock || this._asking || !navigator.wakeLock) return undefined;
    this._asking = true;
    try {
      this._lock = await navigator.wakeLock.request("screen");
      this._lock.addEventListener("release", () => (this._lock = null));
    } catch {
      this._lock = null; // low battery, or a policy of the browser: the screen goes off as it always does
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
    if (document.hidden) this._ears.pause(HIDDEN);
    else this._ears.resume(HIDDEN);
    this.training(this._training);
  }

  /** Only some browsers tell of the battery. */
  async _battery() {
    const battery = await /** @type {any} */ (navigator).getBattery?.().catch(() => null);
    if (!battery) return this._ears.said("This browser does not tell how full the battery is: plug in, or pause, when it runs low.");
    const look = () => {
      const low = !battery.charging && battery.level < LOW;
      if (low) this._ears.pause(BATTERY);
      else this._ears.resume(BATTERY);
      this._ears.battery(100 * battery.level, battery.charging);
      this._ears.said(`Battery ${Math.round(100 * battery.level)} %${battery.charging ? ", charging" : ""}. Below ${100 * LOW} % it pauses until it is plugged in.`);
    };
    for (const change of ["levelchange", "chargingchange"]) battery.addEventListener(change, look);
    return look();
  }
}

/** Ask the browser to keep what is stored even when it runs short of room. @returns {Promise<boolean>} */
export async function persist() {
  return (await navigator.storage?.persist?.().catch(() => false)) ?? false;
}
