/** Tells what the device waits for, and since when, if that takes long. */

/** Milliseconds; shorter waits are not shown. */
export const LONG_MS = 20_000;

/** What is awaited after a message of the worker; empty: nothing. Other messages do not change it. */
const AWAITED = {
  link: ({ connected }) => (connected ? "the task" : "a connection"),
  fetching: ({ have, size }) => (have < size ? "the rest of the model" : "the model to be ready"),
  offer: ({ done, round }) => (done ? "" : round ? "the model to be ready" : "enough devices to begin"),
  plan: ({ label }) => (label ? "the next step of its training" : "the next round"),
  progress: () => "the next step of its training",
  made: () => "the receipt",
  receipt: () => "the next round",
  stopped: () => "",
};

export class Waiting {
  /** @param {Date} now */
  constructor(now) {
    this._what = "a connection";
    this._since = now;
    this._connected = false;
    this._over = false;
  }

  /** Take a message of the worker. @param {any} told @param {Date} now */
  hear(message, now) {
    const what = AWAITED[message.type]?.(message) ?? null;
    if (message.type === "offer") this._over = message.done;
    if (message.type === "link") {
      if (message.connected === this._connected && !message.connected) return; // still not connected
      this._connected = message.connected;
    } else if (!this._connected && message.type !== "stopped") return;
    if (what === null) return;
    this._what = this._over ? "" : what;
    this._since = now;
  }

  /**
   * The text for the user; empty if nothing has taken long. @param {Date} now
   * @param {{paused: boolean, samples: () => number | null}} here samples: how many are stored; null if not known
   */
  text(now, { paused, samples }) {
    if (!this._what || paused || now.getTime() - this._since.getTime() < LONG_MS) return "";
    const what = this._connected && samples() === 0 ? "samples: teach it, or choose files" : this._what;
    const note = this._connected ? "" : " What you teach it is kept here meanwhile.";
    return `Since ${clock(this._since)} this device has waited for ${what}.${note}`;
  }
}

/** Hours, minutes and seconds in local time. @param {Date} moment */
const clock = (moment) => moment.toLocaleTimeString("en-GB");
