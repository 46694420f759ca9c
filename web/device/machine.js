/**
 * State machine of a device: a pure function of a state and an event, without I/O or clock (device/machine/step.py, where more is
 * said). The runner does what it commands. Traces of both machines are in web/vectors/client/.
 */

import { offered, take, withdrawn } from "./offer_rules.js";
import { Turn, hasAnswered, isNamed, isSameRound } from "./turn.js";

/** @typedef {import("./turn.js").DeviceState} DeviceState */
/** @typedef {import("./turn.js").DeviceEvent} DeviceEvent */
/** @typedef {import("./turn.js").DeviceCommand} DeviceCommand */
/** @typedef {import("./turn.js").Offered} Offered */
/** @typedef {import("./turn.js").WaitingContribution} WaitingContribution */

/** Part of an open round's rest that evaluating the round before may take. */
const EVALUATION_SHARE = 0.05;

/**
 * The state after an event, and the commands to execute, in this order. @param {DeviceState} state
 * @param {DeviceEvent} event @returns {{state: DeviceState, commands: DeviceCommand[]}}
 */
export function step(state, event) {
  const turn = new Turn(state, event.now);
  HANDLERS[event.type]?.(turn, event);
  if (OUTSIDE.has(event.type)) checkTraining(turn);
  return { state: turn.state, commands: turn.commands };
}

/** What the device does, for people. @param {DeviceState} state */
export function phaseOf({ training, open, background, evaluating, missing, final, outbox }) {
  if (training || (open && open.number === background)) return "training";
  if (evaluating) return "evaluating";
  if (open) return missing && !missing.length ? "ready" : "fetching";
  if (final) return "fetching";
  return outbox.length ? "awaiting_receipt" : "idle";
}

/** Events outside of the work, after which training may not be wanted any longer. */
const OUTSIDE = new Set(["Tick", "LinkUp", "OfferReceived", "WorkGateChanged"]);

/** @type {{[type: string]: (turn: Turn, event: any) => void}} */
const HANDLERS = {
  Tick: ticked,
  LinkUp(turn, { flight }) {
    turn.set({ withdrawn: false });
    turn.do("RestartDownloads");
    turn.restartSending(flight.contributions);
    turn.hello();
  },
  OfferReceived: offered,
  OfferWithdrawn: withdrawn,
  WorkGateChanged: gateChanged,
  HelloSaid: (turn, { samples }) => turn.set({ samples }),
  SamplesChanged: (turn) => turn.hello(),
  WholeOfferNeeded(turn) {
    if (turn.state.hello_s === null) turn.hello();
  },
  Kept: onKept,
  KeepFailed: (turn, { run, round }) => turn.do("RoundEnded", { run, round, reason: "not kept" }),
  Sent: (turn, event) => ofEntry(turn, event, (entry) => turn.replace({ ...entry, compact: event.compact })),
  ReceiptReceived: (turn, event) => ofEntry(turn, event, (entry) => receiptReceived(turn, event, entry)),
  Settled: (turn, event) =>
    ofEntry(turn, event, (entry) => {
      const { run, round } = entry;
      turn.settle(entry);
      turn.do("RoundEnded", { run, round, reason: event.counts ? "accepted" : "not accepted" });
    }),
  PlanMade(turn, { task, round }) {
    turn.set({ plan: [task, round] });
    turn.do("SendPlan");
  },
  WorkerDied: (turn) => turn.set({ plan: ["", 0] }),
  Made: onMade,
  TaskKnown(turn, { bundles }) {
    const { ready_for: readyFor } = turn.state;
    turn.set({ bundles });
    if (!bundles || bundles === readyFor) return;
    turn.set({ ready_for: bundles, worked_on: null });
    turn.hello();
  },
  BlobArrived: (turn) => turn.set({ missing: null }),
  Previewed: previewed,
  FetchRefused(turn, { number }) {
    const { final, open } = turn.state;
    if (final?.number === number) missFinal(turn, final);
    else if (open?.number === number) turn.endOpen("no blob");
  },
  Prepared(turn, { number }) {
    const { open, paused } = turn.state;
    if (open?.number === number && !paused) prepared(turn, open);
  },
  Trained: trained,
  TrainingGoesOn: trained,
  Evaluated(turn, { number, seconds }) {
    const { final, evaluate_s: before } = turn.state;
    turn.set({ evaluating: 0, evaluate_s: seconds ?? before });
    if (final?.number === number) turn.set({ final: null, worked_on: null });
  },
  WorkFailed: failed,
};

/** Cancel training whose task is done, and paused training that is not wanted any longer. @param {Turn} turn */
function checkTraining(turn) {
  const { training, open: newest, cancelled, paused, finished_run: finished } = turn.state;
  if (!training || cancelled) return;
  let reason = "";
  if (!newest && finished === training.run) reason = "task done";
  else if (paused && (!newest || !isSameRound(newest, training))) reason = "given up";
  else if (paused && turn.now >= newest.closes) reason = "closed";
  if (!reason) return;
  turn.set({ cancelled: reason });
  const hold = turn.commands.at(-1)?.type === "Hold" ? turn.commands.pop() : null;
  turn.do("Cancel", { number: training.number, reason });
  if (hold) turn.commands.push(hold);
}

function ticked(/** @type {Turn} */ turn, /** @type {any} */ { flight }) {
  const { past } = turn.state;
  if (past && (turn.state.task || turn.now >= turn.state.past_s)) {
    turn.set({ past: null });
    if (!turn.state.task) take(turn, past);
  }
  if (turn.state.paused) tellSatOut(turn);
  if (!turn.state.quiet && !turn.state.withdrawn) turn.send(flight);
  turn.repeatHello(flight);
  const { state } = turn;
  if (state.paused || state.training || state.evaluating) return;
  if (state.open) turn.set({ final: null });
  if (state.worked_on && mayEvaluate(state, turn.now)) {
    const { number } = state.worked_on;
    turn.set({ worked_on: null, evaluating: number });
    turn.do("Evaluate", { number });
  } else if (state.open) {
    advance(turn, state.open);
  } else if (state.final) {
    turn.do("Preview", { number: state.final.number });
  }
}

/**
 * Whether the round that was worked on may be evaluated now. That can wait until the aggregator has fetched what it
 * fetches from here. It is done between rounds, or takes a small share of the open one.
 */
function mayEvaluate(/** @type {DeviceState} */ state, /** @type {number} */ now) {
  if (state.outbox.some((/** @type {WaitingContribution} */ entry) => entry.fetched)) return false;
  if (!state.open) return !state.final;
  return state.evaluate_s !== null && state.evaluate_s < EVALUATION_SHARE * (state.open.closes - now);
}

/** Find out what is missing, fetch it, or prepare the training. */
function advance(/** @type {Turn} */ turn, /** @type {Offered} */ { number }) {
  const { missing } = turn.state;
  if (!missing) turn.do("Preview", { number });
  else if (missing.length) turn.do("Fetch", { number, blobs: missing });
  else turn.do("Prepare", { number });
}

/**
 * Pause, or work again; a round that has closed in the meantime is not begun. After a pause the device says hello, as
 * no round waits for it.
 */
function gateChanged(/** @type {Turn} */ turn, /** @type {any} */ { allows, quiet }) {
  const { paused, training, open } = turn.state;
  turn.set({ paused: !allows, quiet: quiet && !allows });
  if (!allows) {
    if (!paused) turn.do("SayPaused", { yes: true });
    tellSatOut(turn);
    if (!paused && training) turn.do("Hold");
  } else if (paused) {
    turn.do("SayPaused", { yes: false });
    if (open && !training && open.closes <= turn.now) turn.endOpen("closed");
    turn.hello();
  }
}

/** Tell, once, that the open round need not wait for this device while it is paused. @param {Turn} turn */
function tellSatOut(turn) {
  const { open, sat_out: satOut } = turn.state;
  if (!open || open.round === 0 || hasAnswered(turn.state, open.run, open.round)) return;
  const { task, round } = open;
  if (isNamed([task, round], satOut)) return;
  turn.set({ sat_out: [task, round] });
  turn.do("SendSatOut", { task, round });
}

function onKept(/** @type {Turn} */ turn, /** @type {any} */ { entry, flight }) {
  const { outbox, samples, quiet } = turn.state;
  turn.set({ outbox: [...outbox, entry] });
  if (entry.samples > samples) turn.hello(); // samples have come since the hello
  if (!quiet) turn.send(flight);
}

/** Do something with the contribution that an event is about, if it waits for a receipt. */
function ofEntry(/** @type {Turn} */ turn, /** @type {any} */ { seq }, /** @type {(entry: WaitingContribution) => void} */ act) {
  const entry = turn.state.outbox.find((/** @type {WaitingContribution} */ waiting) => waiting.seq === seq);
  if (entry) act(entry);
}

function receiptReceived(/** @type {Turn} */ turn, /** @type {any} */ event, /** @type {WaitingContribution} */ entry) {
  const { seq, counts, retry_s: retryS } = event;
  if (retryS) turn.putOff(entry, retryS);
  else turn.do("Settle", { seq, counts, first_s: entry.first_s });
}

/** Keep the result of a round's work. After that the round is not worked on again, unless it sat out. */
function onMade(/** @type {Turn} */ turn, /** @type {any} */ { run, round, result }) {
  if (result === "sat out") {
    turn.do("RoundEnded", { run, round, reason: "sat out" });
    return;
  }
  turn.set({ answered: [run, round] });
  if (result === "failed") turn.do("RoundEnded", { run, round, reason: "not kept" });
  else turn.do("Keep", { run, round });
}

function previewed(/** @type {Turn} */ turn, /** @type {any} */ { number, missing }) {
  const { open, final, paused, training } = turn.state;
  if (open?.number === number) {
    turn.set({ missing, fetching: missing.length && open.round > 0 ? number : 0 });
    if (!paused && !training) advance(turn, open);
  } else if (final?.number === number && !paused) {
    if (!missing.length) {
      turn.set({ evaluating: number });
      turn.do("KeepFinalModel", { number });
    } else if (turn.now < turn.state.final_s) {
      turn.do("Fetch", { number, blobs: missing });
    } else {
      missFinal(turn, final);
    }
  }
}

function missFinal(/** @type {Turn} */ turn, /** @type {Offered} */ { number }) {
  turn.do("FinalModelMissed", { number });
  turn.set({ final: null, worked_on: null });
}

/**
 * Train, unless the round is the lobby or has its answer. The base of the round before is no longer in memory, so that
 * one is not evaluated any more.
 */
function prepared(/** @type {Turn} */ turn, /** @type {Offered} */ current) {
  const { pruned, worked_on: workedOn, training } = turn.state;
  const { number, run, round } = current;
  if (pruned !== number) {
    turn.set({ pruned: number });
    turn.do("Prune", { number });
  }
  if (workedOn && !isSameRound(workedOn, current)) turn.set({ worked_on: null });
  if (round === 0 || hasAnswered(turn.state, run, round)) {
    turn.endOpen();
  } else if (!training) {
    turn.set({ training: current });
    turn.do("Train", { number });
  }
}

function trained(/** @type {Turn} */ turn, /** @type {any} */ { type, number, evaluate_s: evaluateS }) {
  const { training, open } = turn.state;
  if (training?.number !== number) return;
  turn.set({ training: null, cancelled: "" });
  if (type === "TrainingGoesOn") {
    turn.set({ background: number });
    if (!open || !isSameRound(open, training)) turn.end(training, "superseded");
    return;
  }
  turn.set({ background: 0, worked_on: training, evaluate_s: evaluateS ?? turn.state.evaluate_s });
  if (open?.number === number) turn.endOpen();
}

/** Try again at the next tick, unless the round cannot be worked on at all. */
function failed(/** @type {Turn} */ turn, /** @type {any} */ { number, why, whole }) {
  const { training, cancelled, evaluating, open, final, final_s: finalS } = turn.state;
  const wasTrained = training?.number === number;
  if (wasTrained) turn.set({ training: null, cancelled: "" });
  if (number === evaluating) turn.set({ evaluating: 0 });
  const isOut = why === "left out" || why === "stopped";
  const reason = (/** @type {string} */ otherwise) => (why === "left out" ? why : cancelled || otherwise);
  if (open?.number === number) {
    if (isOut) {
      turn.endOpen(reason("stopped"));
      return;
    }
    turn.set({ missing: null });
    if (why === "no room") turn.do("Prune", { number });
    if (why === "stale base" && !whole) {
      turn.endOpen("stale base");
      turn.hello(); // to get the whole offer, which names all blobs of the base
    }
  } else if (final?.number === number) {
    if (isOut || turn.now >= finalS) turn.set({ final: null, worked_on: null });
  } else if (wasTrained) {
    turn.end(training, reason("superseded"));
  }
}
