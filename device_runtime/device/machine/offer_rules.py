"""Decides which offers a device accepts and which task it works on."""

from __future__ import annotations

from device_runtime.device.connection.offers import EXTENDED_S

from . import events as ev
from .events import RESEND_S
from .turn import Turn

ANOTHER_S = 10.0
"""Seconds that a device without a task waits for another one after it hears of a task that is done."""
FINAL_S = 60.0
"""Seconds in which the final model of a task is fetched, if the owner wants one."""
TASKS = 64
"""Most other tasks that are remembered, those heard of last: any of them will do."""


def offered(turn: Turn, event: ev.OfferReceived) -> None:
    """Handle an offer to all devices, or one in answer to a hello."""
    if event.offer.task == turn.state.task or not turn.state.task:
        turn.set(withdrawn=False)
    if not event.to_all or _is_to_be_taken(turn, event):
        take(turn, event.offer)


def withdrawn(turn: Turn, task: str) -> None:
    """Handle that a task is not offered any more: neither ask for it nor send until it is offered again.

    A device whose settings name no task goes on to another one.
    """
    state = turn.state
    if task != state.task:
        turn.set(others=tuple(other for other in state.others if other != task))
    elif not state.done:
        turn.set(withdrawn=True)
        _go_to_other_task(turn)


def _is_to_be_taken(turn: Turn, event: ev.OfferReceived) -> bool:
    """Handle an offer to all devices; returns whether to take it.

    A retained offer only says that there is a task: a device learns the rest in answer to its hello. If
    the offer was heard before, or is of another run, the aggregator has restarted, perhaps from a backup,
    and does not know which devices are here: say hello again. A base that is new to all devices comes
    unasked to those that said they are ready, except where some train smaller models.
    """
    offer = event.offer
    if not _concerns(turn, offer):
        return False
    state = turn.state
    if event.retained and offer.done and not state.task:
        if state.past is None:
            turn.set(past=offer, past_s=turn.now + ANOTHER_S)
        return False
    if event.retained and not offer.done:
        return False
    if state.bundles and not offer.done:
        run, number = state.heard
        if run not in ("", offer.run) or offer.round in (0, number):
            turn.hello()
            turn.restart_sending(event.flight.contributions)
        elif offer.round > 1 and not (offer.family or offer.at):
            new = tuple(part for part in offer.checkpoint if part not in state.base)
            turn.do(*([ev.ExpectBlobs(offer.number, new)] if new else []))
    if event.over:
        for entry in turn.state.outbox:
            if entry.compact and entry.run == offer.run and entry.round < offer.round:
                turn.close(entry)
    return True


def take(turn: Turn, offer: ev.Offered) -> None:
    """Take an offer; the newest replaces any other. In round 0, only prepare.

    A repeated offer that says that a task it has left is done, in answer to an earlier hello, changes
    nothing. If two hellos are answered with different tasks, the device is in the one answered last and
    notes the other.
    """
    state = turn.state
    if offer.done and state.task not in ("", offer.task):
        turn.drop(offer.run)
        return
    others = state.others
    if not state.done and state.task not in ("", offer.task):
        others = _with_task(others, state.task)
    turn.set(
        hello_s=None,
        hello_wait_s=RESEND_S,
        others=tuple(task for task in others if task != offer.task),
        task=offer.task,
        done=offer.done,
        heard=(offer.run, offer.round),
        base=offer.checkpoint,
    )
    _open(turn, offer)
    if offer.done:
        turn.do(ev.TaskDone(offer.task, offer.round))
        turn.drop(offer.run)
        if state.rules.keeps and state.finished_run != offer.run and state.bundles == offer.bundles:
            turn.set(final=offer, final_s=turn.now + FINAL_S)
            if not offer.at:
                turn.do(ev.FetchAhead(offer.number))
        turn.set(finished_run=offer.run)
        _go_to_other_task(turn)


def _open(turn: Turn, offer: ev.Offered) -> None:
    """Open the newest round, which replaces any other.

    A round whose base is being fetched goes on if rounds do not wait for it, that is if the newest opened
    well before the deadline of this one: otherwise a slow link would fetch base after base in vain. The
    newest is next.
    """
    open_offer, newest = turn.state.open, turn.state.newest
    if open_offer is not None and _goes_on(turn, open_offer, offer):
        if newest is not None and not newest.same_round(offer):
            turn.end(newest, "superseded")
        turn.set(newest=offer)
        return
    for replaced in (open_offer, newest):
        if replaced is not None and (offer.done or not replaced.same_round(offer)):
            turn.end(replaced, "task done" if offer.done else "superseded")
    turn.set(open=None if offer.done else offer, newest=None, missing=None)


def _goes_on(turn: Turn, offer: ev.Offered, newest: ev.Offered) -> bool:
    """Whether the open round's base is being fetched, with time left before its deadline."""
    if newest.done or offer.number != turn.state.fetching:
        return False
    return offer.run == newest.run and offer.round < newest.round and turn.now + EXTENDED_S < offer.closes


def _concerns(turn: Turn, offer: ev.Offered) -> bool:
    """Whether an offer to all is of this device's task.

    Another task is noted: a device whose settings name no task goes on to it when its own is done.
    """
    state = turn.state
    if offer.task == state.task or (not state.task and offer.done):
        return True
    if offer.done:
        turn.set(others=tuple(task for task in state.others if task != offer.task))
        return False
    turn.set(others=_with_task(state.others, offer.task))
    if not state.task or state.done:
        _go_to_other_task(turn)
    return offer.task == turn.state.task


def _go_to_other_task(turn: Turn) -> None:
    """Go on to the first other task by name, if there is one and the rules allow it."""
    state = turn.state
    if state.rules.task or not state.others or (state.done and state.rules.leaves):
        return
    task = min(state.others)
    others = tuple(name for name in state.others if name != task)
    turn.set(others=others, task=task, done=False, withdrawn=False)
    turn.do(ev.JoinTask(task))
    turn.hello()


def _with_task(others: tuple[str, ...], task: str) -> tuple[str, ...]:
    return (*(name for name in others if name != task), task)[-TASKS:]
