/** Which offers a device takes, and which task it is in (device/machine/offer_rules.py). */

import { RESEND_S, isNamed, isSameRound } from "./turn.js";

/** @typedef {import("./turn.js").Offered} Offered */
/** @typedef {import("./turn.js").Turn} Turn */

/** A deadline that is later by at least so many seconds is a new one; less is the message's delay. */
const EXTENDED_S = 1;
/** Seconds that a device without a task waits for another one after it hears of a task that is done. */
export const ANOTHER_S = 10;
/** Seconds in which the final model of a task is fetched, if it is wanted. */
export const FINAL_S = 60;
/** Most other tasks that are remembered, those heard of last: any of them will do. */
const TASKS = 64;

/** Handle an offer to all devices, or one in answer to a hello. @param {Turn} turn @param {any} event */
export function offered(turn, event) {
  const { task } = turn.state;
  if (event.offer.task === task || !task) turn.set({ withdrawn: false });
  if (!event.to_all || acceptOffer(turn, event)) take(turn, event.offer);
}

/**
 * Handle that a task is not offered any more: neither ask for it nor send until it is offered again. A device whose
 * settings name no task goes on to another one. @param {Turn} turn @param {any} event
 */
export function withdrawn(turn, { task }) {
  const { state } = turn;
  if (task !== state.task) {
    turn.set({ others: state.others.filter((/** @type {string} */ name) => name !== task) });
  } else if (!state.done) {
    turn.set({ withdrawn: true });
    goToOtherTask(turn);
  }
}

/**
 * Handle an offer to all devices; returns whether to take it. A retained offer only says that there is a task: a device
 * learns the rest in answer to its hello. If the offer was heard before, or is of another run, the aggregator has
 * restarted, perhaps from a backup, and does not know which devices are here: say hello again. A base that is new to all
 * devices comes unasked to those that said they are ready, except where some train smaller models.
 * @param {Turn} turn @param {any} event
 */
function acceptOffer(turn, { offer, retained, over, flight }) {
  if (!concerns(turn, offer)) return false;
  const { state } = turn;
  if (retained && offer.done && !state.task) {
    if (!state.past) turn.set({ past: offer, past_s: turn.now + ANOTHER_S });
    return false;
  }
  if (retained && !offer.done) return false;
  if (state.bundles && !offer.done) {
    const [run, round] = state.heard;
    if ((run && offer.run !== run) || offer.round === 0 || offer.round === round) {
      turn.hello();
      turn.restartSending(flight.contributions);
    } else if (offer.round > 1 && !(offer.family || offer.at)) {
      const blobs = offer.checkpoint.filter((/** @type {string} */ part) => !state.base.includes(part));
      if (blobs.length) turn.do("ExpectBlobs", { number: offer.number, blobs });
    }
  }
  for (const entry of over ? turn.state.outbox : []) {
    if (entry.compact && entry.run === offer.run && entry.round < offer.round) turn.close(entry);
  }
  return true;
}

/**
 * Take an offer; the newest replaces any other. Round 0 is the lobby: get ready. A repeated offer that says that a task
 * it has left is done, in answer to an earlier hello, changes nothing. If two hellos are answered with different tasks,
 * the device is in the one answered last and notes the other. @param {Turn} turn @param {Offered} offer
 */
export function take(turn, offer) {
  const { state } = turn;
  const { task, run, round, done, bundles, number } = offer;
  const isOther = state.task !== "" && state.task !== task;
  if (done && isOther) {
    turn.drop(run);
    return;
  }
  const others = !state.done && isOther ? withTask(state.others, state.task) : state.others;
  turn.set({
    hello_s: null,
    hello_wait_s: RESEND_S,
    others: others.filter((/** @type {string} */ name) => name !== task),
    task,
    done,
    heard: [run, round],
    base: offer.checkpoint,
  });
  open(turn, offer);
  if (!done) return;
  turn.do("TaskDone", { task, round });
  turn.drop(run);
  if (state.rules.keeps && state.finished_run !== run && state.bundles === bundles) {
    turn.set({ final: offer, final_s: turn.now + FINAL_S });
    if (!offer.at) turn.do("FetchAhead", { number });
  }
  turn.set({ finished_run: run });
  goToOtherTask(turn);
}

/**
 * Open the newest round, which replaces any other. A round whose base is being fetched goes on if rounds do not wait for
 * it, that is if the newest opened well before the deadline of this one: otherwise a slow link would fetch base after
 * base in vain. The newest is next. @param {Turn} turn @param {Offered} offer
 */
function open(turn, offer) {
  const { open: current, newest } = turn.state;
  if (current && goesOn(turn, current, offer)) {
    if (newest && !isSameRound(newest, offer)) turn.end(newest, "superseded");
    turn.set({ newest: offer });
    return;
  }
  for (const replaced of [current, newest]) {
    if (replaced && (offer.done || !isSameRound(replaced, offer))) {
      turn.end(replaced, offer.done ? "task done" : "superseded");
    }
  }
  turn.set({ open: offer.done ? null : offer, newest: null, missing: null });
}

/** Whether the open round's base is being fetched, with time left before its deadline. */
function goesOn(/** @type {Turn} */ turn, /** @type {Offered} */ current, /** @type {Offered} */ newest) {
  if (newest.done || current.number !== turn.state.fetching) return false;
  return current.run === newest.run && current.round < newest.round && turn.now + EXTENDED_S < current.closes;
}

/**
 * Whether an offer to all is of this device's task. Another task is noted: a device whose settings name no task goes on
 * to it when its own is done. @param {Turn} turn @param {Offered} offer
 */
function concerns(turn, { task, done }) {
  const { state } = turn;
  if (task === state.task || (!state.task && done)) return true;
  if (done) {
    turn.set({ others: state.others.filter((/** @type {string} */ name) => name !== task) });
    return false;
  }
  turn.set({ others: withTask(state.others, task) });
  if (!state.task || state.done) goToOtherTask(turn);
  return task === turn.state.task;
}

/** Go on to the first other task by name, if there is one and the rules allow it. @param {Turn} turn */
function goToOtherTask(turn) {
  const { rules, others, done } = turn.state;
  if (rules.task || !others.length || (done && rules.leaves)) return;
  const [task] = [...others].sort();
  turn.set({ others: others.filter((/** @type {string} */ name) => name !== task), task, done: false, withdrawn: false });
  turn.do("JoinTask", { task });
  turn.hello();
}

/** @param {string[]} others @param {string} task */
const withTask = (others, task) => [...others.filter((name) => name !== task), task].slice(-TASKS);
