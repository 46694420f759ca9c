/** In the audio thread: hands on what the microphone hears. */

class Microphone extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
}

registerProcessor("microphone", Microphone);
