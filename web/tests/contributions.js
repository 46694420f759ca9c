/** Makes contributions as a device keeps them until their receipt. */
const METRICS = { train_loss: 0.5, train_time_ms: 1, energy_mj: 2, peak_memory_kib: 3 };
export const contribution = (seq, round, more = {}) => ({
  task: "digits",
  run: "r1",
  round,
  boot: 7n,
  seq,
  kind: "full",
  num_examples: 10,
  metrics: { ...METRICS, epsilon_milli: 0, energy_source: "", energy_off_percent: 0 },
  body: Uint8Array.of(1, 2, 3),
  blob: null,
  form: "",
  mask: null,
  ...more,
});
