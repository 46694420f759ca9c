/** Passes the samples of the microphone on; runs in the audio thread. */

class Microphone extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
}

registerProcessor("microphone", Microphone);
