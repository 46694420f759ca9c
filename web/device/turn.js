/**
 * Collects the new state and the commands of one step of the device's state machine (device/machine/state.py).
 *
 * Fields of states, events and commands are called as in Python (device/machine/state.py, device/machine/events.py), so that traces
 * of one are those of the other. `type` names the class of an event or a command.
 * @typedef {{[field: string]: any}} DeviceState
 * @typedef {{type: string, now: number, [field: string]: any}} DeviceEvent
 * @typedef {{type: string, [field: string]: any}} DeviceCommand
 * @typedef {{number: number, task: string, run: string, round: number, closes: number, done: boolean, bundles: string,
 *   checkpoint: string[], at: number, family: boolean}} Offered
 * @typedef {{seq: number, task: string, run: string, round: number, samples: number, fetched: boolean,
 *   compact: boolean, first_s: number | null, carried_s: number | null, wait_s: number, order: number}} WaitingContribution
 * @typedef {{messages: number, hellos: number, contributions: number}} MessagesInFlight
 */

/** Seconds without an answer after which a hello or a contribution is sent again. They double each time. */
export const RESEND_S = 10;
/** Seconds up to which those double. */
export const MAX_RESEND_S = 60;
/** Commands that events answer, or WorkFailed: they are the last of their step. */
export const BLOCKING = new Set(
  ["Preview", "Fetch", "Prepare", "Train", "Hold", "Keep", "Settle", "Evaluate", "KeepFinalModel"],
);

/** The state of a device that has just started. @param {Partial<DeviceState>} [more] @returns {DeviceState} */
export function firstState(more = {}) {
  return {
    rules: { task: "", keeps: false, leaves: false }, task: "", done: false, heard: ["", 0], base: [], others: [],
    past: null, past_s: 0, open: null, newest: null, fetching: 0, missing: null, pruned: 0,
    training: null, cancelled: "", background: 0, worked_on: null, evaluating: 0, evaluate_s: null,
    final: null, final_s: 0, finished_run: "", answered: ["", 0], settled: ["", 0],
    bundles: "", ready_for: "", samples: 0, hello_s: null, hello_wait_s: RESEND_S,
    paused: false, quiet: false, sat_out: ["", 0], plan: ["", 0], outbox: [], sends: 0, withdrawn: false,
    ...more,
  };
}

/** @param {Partial<WaitingContribution>} entry @returns {WaitingContribution} */
export function waiting(entry) {
  const sent = { fetched: false, compact: false, first_s: null, carried_s: null, wait_s: RESEND_S, order: 0 };
  return /** @type {WaitingContribution} */ ({ ...sent, ...entry });
}

/** Whether two names of a round (run or task, number) are the same. @param {any[]} one @param {any[]} other */
export const isNamed = (left, other) => left[0] === other[0] && left[1] === other[1];

/** Whether two offers are of the same round. @param {Offered} one @param {Offered} other */
export const isSameRound = (left, other) => left.run === other.run && left.round === other.round;

/**
 * Whether this round was worked on already, by this process or an earlier one.
 * @param {DeviceState} state @param {string} run @param {number} round
 */
export function hasAnswered(state, run, round) {
  const names = [state.answered, state.settled, ...state.outbox.map((/** @type {WaitingContribution} */ entry) => [entry.run, entry.round])];
  return names.some((name) => isNamed(name, [run, round]));
}

/** The state so far, and the commands so far. */
export class Turn {
  /** @type {DeviceCommand[]} */
  commands = [];

  /** @param {DeviceState} state @param {number} now */
  constructor(state, now) {
    this.state = state;
    this.now = now;
  }

  /** @param {Partial<DeviceState>} changes */
  set(changes) {
    this.state = { ...this.state, ...changes };
  }

  /** @param {string} type @param {object} [fields] */
  do(type, fields = {}) {
    this.commands.push({ type, ...fields });
  }

  /**
   * Say hello with the number of samples: an aggregator refuses an update that claims more. A hello says that the
   * device is ready: if it is paused, say so after the hello. If the device has told that it sits the round out, tell
   * its plan after all.
   */
  hello() {
    const { bundles, outbox, task, paused, plan, sat_out: satOut } = this.state;
    const ofTask = outbox.filter((/** @type {WaitingContribution} */ entry) => bundles && entry.task === task);
    this.do("SayHello", { least: Math.max(0, ...ofTask.map((/** @type {WaitingContribution} */ entry) => entry.samples)) });
    this.set({ hello_s: this.now });
    if (paused) {
      this.do("SayPaused", { yes: true });
      return;
    }
    if (plan[0] && isNamed(plan, satOut)) this.do("SendPlan");
    this.set({ sat_out: ["", 0] });
  }

  /** Repeat a hello without an answer after silence on the link, with waits that double. @param {MessagesInFlight} flight */
  repeatHello(flight) {
    const { hello_s: helloS, hello_wait_s: waitS } = this.state;
    if (helloS === null || this.state.withdrawn) return;
    if (flight.hellos) {
      this.set({ hello_s: this.now });
    } else if (this.now - helloS >= waitS) {
      this.set({ hello_wait_s: Math.min(2 * waitS, MAX_RESEND_S) });
      this.hello();
    }
  }

  /**
   * Send contributions that are due: those that were not sent yet, and those without a receipt. A slow link is not
   * filled with copies: the wait for a receipt begins when the link has carried everything, and a copy is not sent while
   * it carries anything. @param {MessagesInFlight} flight
   */
  send(flight) {
    const idle = !flight.messages && !this.commands.some(({ type }) => type === "SayHello");
    for (const entry of this.state.outbox) {
      const first = entry.first_s === null;
      if (!first && idle && entry.carried_s === null) this.replace({ ...entry, carried_s: this.now });
      if (!first && (!idle || entry.carried_s === null || this.now - entry.carried_s < entry.wait_s)) continue;
      this.do("Send", { seq: entry.seq, first });
      this.set({ sends: this.state.sends + 1 });
      const wait_s = first ? RESEND_S : Math.min(2 * entry.wait_s, MAX_RESEND_S);
      const first_s = first ? this.now : entry.first_s;
      this.replace({ ...entry, first_s, carried_s: null, wait_s, order: this.state.sends });
    }
  }

  /** The aggregator has no room now: send the contribution again when it says. @param {WaitingContribution} entry */
  putOff(entry, /** @type {number} */ retryS) {
    const first = entry.first_s === null;
    const changed = { ...entry, carried_s: this.now, wait_s: retryS };
    const sends = this.state.sends + (first ? 1 : 0);
    this.set({ sends });
    this.replace(first ? { ...changed, first_s: this.now, order: sends } : changed);
  }

  /**
   * The link or the aggregator was down: the broker may have lost messages, so all are due at once. The link itself
   * resends messages without acknowledgement, except compact ones: the last ones that went whole, `onTheirWay` of
   * them, are not sent again now. @param {number} onTheirWay
   */
  restartSending(onTheirWay) {
    this.do("ForgetAggregator");
    const whole = this.state.outbox.filter((/** @type {WaitingContribution} */ entry) => entry.first_s !== null && !entry.compact);
    whole.sort((/** @type {WaitingContribution} */ left, /** @type {WaitingContribution} */ other) => left.order - other.order || left.seq - other.seq);
    const coming = new Set(
      whole.slice(Math.max(0, whole.length - onTheirWay)).map((/** @type {WaitingContribution} */ entry) => entry.seq),
    );
    for (const entry of this.state.outbox) {
      const change = coming.has(entry.seq) ? {} : { first_s: null };
      this.replace({ ...entry, ...change, carried_s: null, wait_s: RESEND_S });
    }
  }

  /** Change the contribution of this number. @param {WaitingContribution} entry */
  replace(entry) {
    this.set({ outbox: this.state.outbox.map((/** @type {WaitingContribution} */ other) => (other.seq === entry.seq ? entry : other)) });
  }

  /** Remove a contribution that nobody waits for. @param {WaitingContribution} entry */
  remove(entry) {
    this.set({ outbox: this.state.outbox.filter((/** @type {WaitingContribution} */ other) => other.seq !== entry.seq) });
  }

  /** Remove a contribution whose round is answered. @param {WaitingContribution} entry */
  settle(entry) {
    this.remove(entry);
    const [run, number] = this.state.settled;
    if (run !== entry.run || number <= entry.round) this.set({ settled: [entry.run, entry.round] });
  }

  /** A compact contribution to an earlier round need not wait any longer: that has been counted. */
  close(/** @type {WaitingContribution} */ entry) {
    const { seq, run, round } = entry;
    this.settle(entry);
    this.do("CloseContribution", { seq, reason: "round over" });
    this.do("RoundEnded", { run, round, reason: "round over" });
  }

  /** The run is over: drop its contributions without a receipt. @param {string} run */
  drop(run) {
    for (const entry of this.state.outbox.filter((/** @type {WaitingContribution} */ other) => other.run === run)) {
      const { seq, round } = entry;
      this.remove(entry);
      this.do("CloseContribution", { seq, reason: "task done" });
      this.do("RoundEnded", { run, round, reason: "task done" });
    }
  }

  /** Note why a round ends without a receipt; not of one that has a contribution, or is trained. */
  end(/** @type {Offered} */ offer, /** @type {string} */ reason) {
    const { run, round } = offer;
    const { training } = this.state;
    if (round === 0 || hasAnswered(this.state, run, round)) return;
    if (!training || !isSameRound(training, offer)) this.do("RoundEnded", { run, round, reason });
  }

  /** End the open round; the newest that came meanwhile, if any, is next. @param {string} [reason] */
  endOpen(reason) {
    if (this.state.open && reason) this.end(this.state.open, reason);
    this.set({ open: this.state.newest, newest: null, missing: null });
  }
}
