"""Collects the new state and the commands of one step of the device's state machine."""

from __future__ import annotations

from typing import Any

import msgspec

from . import events as ev
from .events import MAX_RESEND_S, RESEND_S, WaitingContribution
from .state import DeviceState


class Turn:
    """The state so far, and the commands so far."""

    def __init__(self, state: DeviceState, now: float) -> None:
        self.state, self.now = state, now
        self.commands: list[ev.DeviceCommand] = []

    def set(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def do(self, *commands: ev.DeviceCommand) -> None:
        self.commands += commands

    def hello(self) -> None:
        """Say hello with the number of samples: an aggregator refuses an update that claims more.

        A hello says that the device is ready: if it is paused, say so after the hello. If the device has told
        that it sits the round out, tell its plan after all.
        """
        state = self.state
        of_task = [entry.samples for entry in state.outbox if state.bundles and entry.task == state.task]
        self.do(ev.SayHello(max(of_task, default=0)))
        self.set(hello_s=self.now)
        if state.paused:
            self.do(ev.SayPaused(True))
            return
        if state.plan[0] and state.plan == state.sat_out:
            self.do(ev.SendPlan())
        self.set(sat_out=("", 0))

    def repeat_hello(self, flight: ev.MessagesInFlight) -> None:
        """Repeat a hello without an answer after silence on the link, with waits that double."""
        state = self.state
        if state.hello_s is None or state.withdrawn:
            return
        if flight.hellos:
            self.set(hello_s=self.now)
        elif self.now - state.hello_s >= state.hello_wait_s:
            self.set(hello_wait_s=min(2 * state.hello_wait_s, MAX_RESEND_S))
            self.hello()

    def send(self, flight: ev.MessagesInFlight) -> None:
        """Send contributions that are due: those that were not sent yet, and those without a receipt.

        A slow link is not filled with copies: the wait for a receipt begins when the link has carried
        everything, and a copy is not sent while it carries anything.
        """
        idle = not (flight.messages or any(isinstance(command, ev.SayHello) for command in self.commands))
        for entry in self.state.outbox:
            if entry.first_s is None:
                self.do(ev.Send(entry.seq, first=True))
                self._sent(entry, True, RESEND_S)
            elif not idle:
                continue
            elif entry.carried_s is None:
                self.replace(msgspec.structs.replace(entry, carried_s=self.now))
            elif self.now - entry.carried_s >= entry.wait_s:
                self.do(ev.Send(entry.seq, first=False))
                self._sent(entry, False, min(2 * entry.wait_s, MAX_RESEND_S))

    def put_off(self, entry: WaitingContribution, retry_s: float) -> None:
        """The aggregator has no room now: send the contribution again when it says."""
        first = entry.first_s is None
        changed = msgspec.structs.replace(entry, carried_s=self.now, wait_s=retry_s)
        if first:
            changed = msgspec.structs.replace(changed, first_s=self.now, order=self.state.sends + 1)
        self.set(sends=self.state.sends + first)
        self.replace(changed)

    def restart_sending(self, on_their_way: int) -> None:
        """The link or the aggregator was down: the broker may have lost messages, so all are due at once.

        The link itself resends messages without acknowledgement, except compact ones: the last ones that went
        whole, `on_their_way` of them, are not sent again now.
        """
        self.do(ev.ForgetAggregator())
        whole = sorted(
            (entry.order, entry.seq)
            for entry in self.state.outbox
            if entry.first_s is not None and not entry.compact
        )
        coming = {seq for _, seq in whole[max(0, len(whole) - on_their_way) :]}
        for entry in self.state.outbox:
            if entry.seq in coming:
                self.replace(msgspec.structs.replace(entry, carried_s=None, wait_s=RESEND_S))
            else:
                self.replace(msgspec.structs.replace(entry, first_s=None, carried_s=None, wait_s=RESEND_S))

    def _sent(self, entry: WaitingContribution, first: bool, wait_s: float) -> None:
        self.set(sends=self.state.sends + 1)
        self.replace(
            msgspec.structs.replace(
                entry,
                first_s=self.now if first else entry.first_s,
                carried_s=None,
                wait_s=wait_s,
                order=self.state.sends,
            )
        )

    def replace(self, entry: WaitingContribution) -> None:
        """Change the contribution of this number."""
        self.set(outbox=tuple(entry if other.seq == entry.seq else other for other in self.state.outbox))

    def remove(self, entry: WaitingContribution) -> None:
        """Remove a contribution that nobody waits for."""
        self.set(outbox=tuple(other for other in self.state.outbox if other.seq != entry.seq))

    def settle(self, entry: WaitingContribution) -> None:
        """Remove a contribution whose round is answered."""
        self.remove(entry)
        (run, number), last = self.state.settled, entry.round
        if run != entry.run or number <= last:
            self.set(settled=(entry.run, last))

    def close(self, entry: WaitingContribution) -> None:
        """A compact contribution to an earlier round need not wait any longer: that has been counted."""
        self.settle(entry)
        self.do(ev.CloseContribution(entry.seq, "round over"))
        self.do(ev.RoundEnded(entry.run, entry.round, "round over"))

    def drop(self, run: str) -> None:
        """The run is over: drop its contributions without a receipt."""
        for entry in [contribution for contribution in self.state.outbox if contribution.run == run]:
            self.remove(entry)
            self.do(ev.CloseContribution(entry.seq, "task done"))
            self.do(ev.RoundEnded(entry.run, entry.round, "task done"))

    def end(self, offer: ev.Offered, reason: ev.Reason) -> None:
        """Note why a round ends without a receipt; not of one that has a contribution, or is trained."""
        training = self.state.training
        if offer.round == 0 or self.state.has_answered(offer.run, offer.round):
            return
        if training is None or not training.same_round(offer):
            self.do(ev.RoundEnded(offer.run, offer.round, reason))

    def end_open(self, reason: ev.Reason | None = None) -> None:
        """End the open round; the newest that came meanwhile, if any, is next."""
        if self.state.open is not None and reason is not None:
            self.end(self.state.open, reason)
        self.set(open=self.state.newest, newest=None, missing=None)
