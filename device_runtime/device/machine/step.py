"""State machine of a device: the pure function `step(state, event) -> (state, commands)`.

    idle -> fetching -> ready -> training -> awaiting_receipt -> evaluating -> idle

Events carry the time. The runner does what the machine commands; commands of BLOCKING are the last of their
step and are answered by events. docs/device-machine.md has all phases, transitions and reasons.
"""

from __future__ import annotations

import msgspec

from . import events as ev
from .offer_rules import offered, take, withdrawn
from .state import DeviceState
from .turn import Turn

EVALUATION_SHARE = 0.05
"""Part of an open round's rest that evaluating the round before may take."""

Result = tuple[DeviceState, tuple[ev.DeviceCommand, ...]]


def step(state: DeviceState, event: ev.DeviceEvent) -> Result:
    """The state after an event, and the commands to execute, in this order."""
    turn = Turn(state, event.now)
    match event:
        case ev.Tick() | ev.LinkUp() | ev.OfferReceived() | ev.WorkGateChanged():
            _outside(turn, event)
        case ev.OfferWithdrawn():
            withdrawn(turn, event.task)
        case ev.HelloSaid():
            turn.set(samples=event.samples)
        case ev.SamplesChanged():
            turn.hello()
        case ev.WholeOfferNeeded() if state.hello_s is None:
            turn.hello()
        case ev.Kept() | ev.KeepFailed() | ev.Sent() | ev.ReceiptReceived() | ev.Settled():
            _delivered(turn, event)
        case ev.PlanMade():
            turn.set(plan=(event.task, event.round))
            turn.do(ev.SendPlan())
        case ev.WorkerDied():
            turn.set(plan=("", 0))
        case ev.Made():
            _on_result(turn, event)
        case _:
            _on_work(turn, event)
    return turn.state, tuple(turn.commands)


def _outside(turn: Turn, event: ev.Tick | ev.LinkUp | ev.OfferReceived | ev.WorkGateChanged) -> None:
    """What happens outside of the work; paused training is cancelled if it is not wanted any longer."""
    match event:
        case ev.Tick():
            _ticked(turn, event)
        case ev.LinkUp():
            turn.set(withdrawn=False)
            turn.do(ev.RestartDownloads())
            turn.restart_sending(event.flight.contributions)
            turn.hello()
        case ev.OfferReceived():
            offered(turn, event)
        case ev.WorkGateChanged():
            _gate_changed(turn, event)
    _check_training(turn)


def _check_training(turn: Turn) -> None:
    """Cancel training whose task is done, and paused training that is not wanted any longer."""
    training, newest = turn.state.training, turn.state.open
    reason: ev.CancelReason | None = None
    if training is None or turn.state.cancelled:
        return
    if newest is None and turn.state.finished_run == training.run:
        reason = "task done"
    elif turn.state.paused and (newest is None or not newest.same_round(training)):
        reason = "given up"
    elif turn.state.paused and newest is not None and turn.now >= newest.closes:
        reason = "closed"
    if reason is not None:
        turn.set(cancelled=reason)
        holds = [turn.commands.pop()] if turn.commands and isinstance(turn.commands[-1], ev.Hold) else []
        turn.do(ev.Cancel(training.number, reason), *holds)


def _ticked(turn: Turn, event: ev.Tick) -> None:
    past = turn.state.past
    if past is not None and (turn.state.task or turn.now >= turn.state.past_s):
        turn.set(past=None)
        if not turn.state.task:
            take(turn, past)
    if turn.state.paused:
        _tell_sat_out(turn)
    if not (turn.state.quiet or turn.state.withdrawn):
        turn.send(event.flight)
    turn.repeat_hello(event.flight)
    state = turn.state
    if state.paused or state.training is not None or state.evaluating:
        return
    if state.open is not None:
        turn.set(final=None)
    if state.worked_on is not None and _may_evaluate(state, turn.now):
        turn.set(worked_on=None, evaluating=state.worked_on.number)
        turn.do(ev.Evaluate(state.worked_on.number))
    elif state.open is not None:
        _advance(turn, state.open)
    elif state.final is not None:
        turn.do(ev.Preview(state.final.number))


def _may_evaluate(state: DeviceState, now: float) -> bool:
    """Whether the round that was worked on may be evaluated now.

    That can wait until the aggregator has fetched what it fetches from here. It is done between rounds, or
    takes a small share of the open one.
    """
    if any(entry.fetched for entry in state.outbox):
        return False
    if state.open is None:
        return state.final is None
    return state.evaluate_s is not None and state.evaluate_s < EVALUATION_SHARE * (state.open.closes - now)


def _advance(turn: Turn, current: ev.Offered) -> None:
    """Find out what is missing, fetch it, or prepare the training."""
    missing = turn.state.missing
    if missing is None:
        turn.do(ev.Preview(current.number))
    elif missing:
        turn.do(ev.Fetch(current.number, missing))
    else:
        turn.do(ev.Prepare(current.number))


def _gate_changed(turn: Turn, event: ev.WorkGateChanged) -> None:
    """Pause, or work again; a round that has closed in the meantime is not begun.

    After a pause the device says hello, as no round waits for it.
    """
    state = turn.state
    turn.set(paused=not event.allows, quiet=event.quiet and not event.allows)
    if not event.allows:
        if not state.paused:
            turn.do(ev.SayPaused(True))
        _tell_sat_out(turn)
        if not state.paused and state.training is not None:
            turn.do(ev.Hold())
    elif state.paused:
        turn.do(ev.SayPaused(False))
        if state.open is not None and state.training is None and state.open.closes <= turn.now:
            turn.end_open("closed")
        turn.hello()


def _tell_sat_out(turn: Turn) -> None:
    """Tell, once, that the open round need not wait for this device while it is paused."""
    current = turn.state.open
    if current is None or current.round == 0 or turn.state.has_answered(current.run, current.round):
        return
    if (current.task, current.round) != turn.state.sat_out:
        turn.set(sat_out=(current.task, current.round))
        turn.do(ev.SendSatOut(current.task, current.round))


def _delivered(
    turn: Turn, event: ev.Kept | ev.KeepFailed | ev.Sent | ev.ReceiptReceived | ev.Settled
) -> None:
    """What happens to a contribution once it is made. A receipt of one that does not wait is ignored."""
    state = turn.state
    if isinstance(event, ev.KeepFailed):
        turn.do(ev.RoundEnded(event.run, event.round, "not kept"))
        return
    if isinstance(event, ev.Kept):
        turn.set(outbox=(*state.outbox, event.entry))
        if event.entry.samples > state.samples:  # samples have come since the hello
            turn.hello()
        if not state.quiet:
            turn.send(event.flight)
        return
    entry = state.waiting(event.seq)
    match event:
        case _ if entry is None:
            return
        case ev.Sent():
            turn.replace(msgspec.structs.replace(entry, compact=event.compact))
        case ev.ReceiptReceived() if event.retry_s:
            turn.put_off(entry, event.retry_s)
        case ev.ReceiptReceived():
            turn.do(ev.Settle(event.seq, event.counts, entry.first_s))
        case ev.Settled():
            turn.settle(entry)
            turn.do(ev.RoundEnded(entry.run, entry.round, "accepted" if event.counts else "not accepted"))


def _on_result(turn: Turn, event: ev.Made) -> None:
    """Keep the result of a round's work. After that the round is not worked on again, unless it sat out."""
    if event.result == "sat out":
        turn.do(ev.RoundEnded(event.run, event.round, "sat out"))
        return
    turn.set(answered=(event.run, event.round))
    failed = event.result == "failed"
    turn.do(ev.RoundEnded(event.run, event.round, "not kept") if failed else ev.Keep(event.run, event.round))


def _on_work(turn: Turn, event: ev.DeviceEvent) -> None:
    """Answers of the backend, and of downloads."""
    state = turn.state
    match event:
        case ev.TaskKnown():
            turn.set(bundles=event.bundles)
            if event.bundles and event.bundles != state.ready_for:
                turn.set(ready_for=event.bundles, worked_on=None)
                turn.hello()
        case ev.BlobArrived():
            turn.set(missing=None)
        case ev.Previewed():
            _previewed(turn, event)
        case ev.FetchRefused():
            if state.final is not None and state.final.number == event.number:
                _miss_final(turn, state.final)
            elif state.open is not None and state.open.number == event.number:
                turn.end_open("no blob")
        case ev.Prepared():
            if state.open is not None and state.open.number == event.number and not state.paused:
                _prepared(turn, state.open)
        case ev.Trained() | ev.TrainingGoesOn():
            if state.training is not None and state.training.number == event.number:
                _trained(turn, event, state.training)
        case ev.Evaluated():
            seconds = state.evaluate_s if event.seconds is None else event.seconds
            turn.set(evaluating=0, evaluate_s=seconds)
            if state.final is not None and state.final.number == event.number:
                turn.set(final=None, worked_on=None)
        case ev.WorkFailed():
            _failed(turn, event)


def _previewed(turn: Turn, event: ev.Previewed) -> None:
    state, number = turn.state, event.number
    if state.open is not None and state.open.number == number:
        fetching = number if event.missing and state.open.round > 0 else 0
        turn.set(missing=event.missing, fetching=fetching)
        if not state.paused and state.training is None:
            _advance(turn, state.open)
    elif state.final is not None and state.final.number == number and not state.paused:
        if not event.missing:
            turn.set(evaluating=number)
            turn.do(ev.KeepFinalModel(number))
        elif turn.now < state.final_s:
            turn.do(ev.Fetch(number, event.missing))
        else:
            _miss_final(turn, state.final)


def _miss_final(turn: Turn, final: ev.Offered) -> None:
    turn.do(ev.FinalModelMissed(final.number))
    turn.set(final=None, worked_on=None)


def _prepared(turn: Turn, current: ev.Offered) -> None:
    """Train, unless it is round 0 or this device has already answered the round.

    The base of the round before is no longer in memory, so that one is not evaluated any more.
    """
    state = turn.state
    if state.pruned != current.number:
        turn.set(pruned=current.number)
        turn.do(ev.Prune(current.number))
    if state.worked_on is not None and not state.worked_on.same_round(current):
        turn.set(worked_on=None)
    if current.round == 0 or state.has_answered(current.run, current.round):
        turn.end_open()
    elif state.training is None:
        turn.set(training=current)
        turn.do(ev.Train(current.number))


def _trained(turn: Turn, event: ev.Trained | ev.TrainingGoesOn, training: ev.Offered) -> None:
    current = turn.state.open
    turn.set(training=None, cancelled="")
    if isinstance(event, ev.TrainingGoesOn):
        turn.set(background=event.number)
        if current is None or not current.same_round(training):
            turn.end(training, "superseded")
        return
    evaluate_s = turn.state.evaluate_s if event.evaluate_s is None else event.evaluate_s
    turn.set(background=0, worked_on=training, evaluate_s=evaluate_s)
    if current is not None and current.number == event.number:
        turn.end_open()


def _failed(turn: Turn, event: ev.WorkFailed) -> None:
    """Try again at the next tick, unless the round cannot be worked on at all."""
    state, number, why = turn.state, event.number, event.why
    trained = state.training if state.training and state.training.number == number else None
    if trained is not None:
        turn.set(training=None, cancelled="")
    if number == state.evaluating:
        turn.set(evaluating=0)
    current, final = state.open, state.final
    if current is not None and current.number == number:
        if why in ("left out", "stopped"):
            turn.end_open("left out" if why == "left out" else state.cancelled or "stopped")
            return
        turn.set(missing=None)
        if why == "no room":
            turn.do(ev.Prune(number))
        if why == "stale base" and not event.whole:
            turn.end_open("stale base")
            turn.hello()  # to get the whole offer, which names all blobs of the base
    elif final is not None and final.number == number:
        if turn.now >= state.final_s or why in ("left out", "stopped"):
            turn.set(final=None, worked_on=None)
    elif trained is not None:
        turn.end(trained, "left out" if why == "left out" else state.cancelled or "superseded")
