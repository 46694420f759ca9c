/** The camera or the microphone, on only while it is needed: not while the page is hidden, nor after it was left. */

const WANTED = {
  camera: { video: { facingMode: "environment" }, audio: false },
  // as it sounds: what makes calls smooth changes features that were learnt of plain recordings
  microphone: { audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false }, video: false },
};

export class Capture {
  /** @param {"camera" | "microphone"} what @param {(why: string) => void} ended told when it goes off; why: in plain words, or empty */
  constructor(what, ended) {
    this._what = what;
    this._ended = ended;
    /** @type {MediaStream | null} */
    this._stream = null;
    this._turn = 0;
    this._seen = () => document.hidden && this._end(`The ${what} is off: the page was hidden.`);
    this._left = () => this.close();
  }

  /** Asks for it, and switches it on. @returns {Promise<MediaStream | null>} null: it was closed meanwhile. Rejects with CaptureError. */
  async open() {
    this.close();
    const turn = this._turn;
    document.addEventListener("visibilitychange", this._seen);
    addEventListener("pagehide", this._left);
    const stream = await asked(this._what).catch((error) => {
      if (turn === this._turn) this.close();
      throw error;
    });
    if (turn !== this._turn) return stop(stream);
    for (const track of stream.getTracks()) track.addEventListener("ended", () => this._end(`The ${this._what} has gone.`));
    this._stream = stream;
    return stream;
  }

  /** Off at once, and also where it was asked for and is not there yet. */
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

/** What the browser says no to, in plain words. */
export class CaptureError extends Error {}

/** @param {"camera" | "microphone"} what */
async function asked(what) {
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
  if (["NotReadableError", "AbortError"].includes(error.name)) return `The ${what} is there but gives nothing: perhaps another program has it.`;
  return `The ${what} cannot be used: ${error.message}`;
}

/** @param {MediaStream} stream */
function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
  return null;
}
