/** Uses the camera or the microphone, and switches it off when the page is hidden or left. */

const WANTED = {
  camera: { video: { facingMode: "environment" }, audio: false },
  // unprocessed: filters for calls would change the features, which were learnt from plain recordings
  microphone: { audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false }, video: false },
};

export class Capture {
  /** @param {"camera" | "microphone"} what @param {(why: string) => void} ended called when it goes off by itself */
  constructor(what, ended) {
    this._what = what;
    this._ended = ended;
    /** @type {MediaStream | null} */
    this._stream = null;
    this._turn = 0;
    this._seen = () => document.hidden && this._end(`The ${what} is off: the page was hidden.`);
    this._left = () => this.close();
  }

  /**
   * Asks the user for permission, and switches it on. Rejects with CaptureError.
   * @returns {Promise<MediaStream | null>} null: it was closed meanwhile
   */
  async open() {
    this.close();
    const turn = this._turn;
    document.addEventListener("visibilitychange", this._seen);
    addEventListener("pagehide", this._left);
    const stream = await streamOf(this._what).catch((error) => {
      if (turn === this._turn) this.close();
      throw error;
    });
    if (turn !== this._turn) return stop(stream);
    for (const track of stream.getTracks()) track.addEventListener("ended", () => this._end(`The ${this._what} is off: the browser ended it.`));
    this._stream = stream;
    return stream;
  }

  /** Switches it off at once, also if it was asked for and is not on yet. */
  close() {
    this._turn += 1;
    document.removeEventListener("visibilitychange", this._seen);
    removeEventListener("pagehide", this._left);
    if (this._stream) stop(this._stream);
    this._stream = null;
  }

  _end(why) {
    this.close();
    this._ended(why);
  }
}

/** Why the camera or the microphone cannot be used, in plain words. */
export class CaptureError extends Error {}

/** @param {"camera" | "microphone"} what */
async function streamOf(what) {
  if (!navigator.mediaDevices) throw new CaptureError(`The ${what} needs a secure page: open it by https.`);
  try {
    return await navigator.mediaDevices.getUserMedia(WANTED[what]);
  } catch (error) {
    throw new CaptureError(whyNot(what, error));
  }
}

function whyNot(what, error) {
  if (error.name === "NotAllowedError") return `This page may not use the ${what}: allow it in the browser's settings of this site. Files can be chosen without it.`;
  if (error.name === "NotFoundError") return `This device has no ${what}. Files can be chosen without it.`;
  if (["NotReadableError", "AbortError"].includes(error.name)) return `The ${what} gives no data: perhaps another program uses it.`;
  return `The ${what} cannot be used: ${error.message}`;
}

/** @param {MediaStream} stream */
function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
  return null;
}
