"""State of the device's state machine. Times are seconds of the device's clock."""

from __future__ import annotations

from typing import Literal

import msgspec

from .events import RESEND_S, CancelReason, Offered, WaitingContribution

Phase = Literal["idle", "fetching", "ready", "training", "awaiting_receipt", "evaluating"]
RoundName = tuple[str, int]
"""A run, and the number of a round."""


class DeviceRules(msgspec.Struct, frozen=True):
    """The part of the settings that the machine acts on.

    `task`: the only task to join; empty: any. `keeps`: the final model of a task is kept. `leaves`: the
    device goes on to no other task when its own is done.
    """

    task: str = ""
    keeps: bool = False
    leaves: bool = False


class DeviceState(msgspec.Struct, frozen=True):
    """The state of the device's state machine, by what its fields are about.

    The task: `heard` is the round of the last offer, `base` the blobs of its base; `others` are other open
    tasks. `past`: a retained offer of a task that was done, believed at `past_s`.

    The round: `open` is worked on next; `newest` came while the base of `open` is fetched (`fetching`: that
    offer's number). `missing`: blobs that `open` needs; None: not known. `pruned`: the offer that blobs were
    last dropped for. `training`: the offer whose training was commanded and has not been answered;
    `background`: the number of one whose backend trains on its own. `worked_on`: the round to evaluate;
    `evaluate_s`: the seconds that this takes, if known. `final`: the offer whose final model is fetched until
    `final_s`. `answered`, `settled`: the last round with a result, and the last with a receipt.

    The aggregator: `bundles` are those that the backend has, `ready_for` those of the last hello that told
    them. `hello_s`: when the hello was sent that waits for its answer. `sat_out`: a round (task, number) of
    which the aggregator was told that a pause keeps the device from it; `plan`: that of the last plan.
    `sends` counts contributions as they are sent.
    """

    rules: DeviceRules = DeviceRules()
    task: str = ""
    done: bool = False
    heard: RoundName = ("", 0)
    base: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    past: Offered | None = None
    past_s: float = 0.0
    open: Offered | None = None
    newest: Offered | None = None
    fetching: int = 0
    missing: tuple[str, ...] | None = None
    pruned: int = 0
    training: Offered | None = None
    cancelled: CancelReason | Literal[""] = ""
    background: int = 0
    worked_on: Offered | None = None
    evaluating: int = 0
    evaluate_s: float | None = None
    final: Offered | None = None
    final_s: float = 0.0
    finished_run: str = ""
    answered: RoundName = ("", 0)
    settled: RoundName = ("", 0)
    bundles: str = ""
    ready_for: str = ""
    samples: int = 0
    hello_s: float | None = None
    hello_wait_s: float = RESEND_S
    paused: bool = False
    quiet: bool = False
    sat_out: RoundName = ("", 0)
    plan: RoundName = ("", 0)
    outbox: tuple[WaitingContribution, ...] = ()
    sends: int = 0
    withdrawn: bool = False

    @property
    def phase(self) -> Phase:
        """What the device does, for people."""
        if self.training is not None or (self.open and self.open.number == self.background):
            return "training"
        if self.evaluating:
            return "evaluating"
        if self.open is not None:
            return "ready" if self.missing == () else "fetching"
        if self.final is not None:
            return "fetching"
        return "awaiting_receipt" if self.outbox else "idle"

    @property
    def offers(self) -> tuple[Offered, ...]:
        """The offers that commands may name."""
        offers = (self.open, self.newest, self.training, self.worked_on, self.final, self.past)
        return tuple(offer for offer in offers if offer is not None)

    def has_answered(self, run: str, number: int) -> bool:
        """Whether this round was worked on already, by this process or an earlier one."""
        named = (run, number)
        return named in (self.answered, self.settled) or any(
            named == (entry.run, entry.round) for entry in self.outbox
        )

    def waiting(self, seq: int) -> WaitingContribution | None:
        """The contribution of this number, if it waits for a receipt."""
        return next((entry for entry in self.outbox if entry.seq == seq), None)
