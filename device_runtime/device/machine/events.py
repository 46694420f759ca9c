"""Events and commands of the device's state machine.

Times are seconds of the device's clock. `number` names an offer: the runner counts the offers that come.
Commands of BLOCKING are answered by events, and are the last of their step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Why = Literal["blob", "no room", "stale base", "worker died", "left out", "stopped"]
"""What ended a piece of work: see `WorkFailed`."""
Reason = Literal[
    "accepted", "not accepted", "round over", "sat out", "not kept", "left out", "no blob", "stale base",
    "superseded", "given up", "closed", "stopped", "task done",
]  # fmt: skip
RESEND_S = 10.0
"""Seconds without an answer after which a hello or a contribution is sent again.

The seconds double each time, up to MAX_RESEND_S. They begin when all messages have reached the broker.
"""
MAX_RESEND_S = 60.0

CancelReason = Literal["given up", "closed", "task done"]
REASONS: dict[Reason, str] = {
    "accepted": "its contribution has a receipt and counts",
    "not accepted": "its contribution has a receipt and does not count: it is late or refused",
    "round over": "a later round is open, and its compact contribution gets no receipt of its own",
    "sat out": "no form of update fits the device; the plan says why",
    "not kept": "its contribution cannot be made or written to disk",
    "left out": "the offer, its bundle or its base cannot be used, or the owner does not allow it",
    "no blob": "the aggregator does not have a blob of it, or the blob had a wrong hash twice",
    "stale base": "a compact offer does not name all blobs of its base: the whole offer is asked for",
    "superseded": "a newer offer came before it was trained",
    "given up": "a newer offer came while its training was paused",
    "closed": "its deadline passed during a pause",
    "stopped": "the device was told to stop",
    "task done": "its task is done",
}
"""Each end of a round on a device, and what it means."""


class Offered(msgspec.Struct, frozen=True):
    """The part of an offer that the machine acts on.

    `bundles` names those of the task, `checkpoint` the blobs of the base (sha256 in hex). `at`: steps that
    the base is away from the first one. `family`: some devices train smaller models.
    """

    number: int
    task: str
    run: str
    round: int
    closes: float
    done: bool = False
    bundles: str = ""
    checkpoint: tuple[str, ...] = ()
    at: int = 0
    family: bool = False

    def same_round(self, other: Offered) -> bool:
        return (self.run, self.round) == (other.run, other.round)


class WaitingContribution(msgspec.Struct, frozen=True):
    """A contribution on disk without a receipt.

    first_s: when it was sent first, on this link to this aggregator; None: it is due.
    carried_s: when the link first had nothing more to carry, after it was sent last; None: not yet.
    wait_s: seconds from then until it is sent again.
    order: its place in the order of sending.
    fetched: the aggregator fetches its content as a blob.
    compact: it was sent in compact form.
    """

    seq: int
    task: str
    run: str
    round: int
    samples: int
    fetched: bool = False
    compact: bool = False
    first_s: float | None = None
    carried_s: float | None = None
    wait_s: float = RESEND_S
    order: int = 0


class MessagesInFlight(msgspec.Struct, frozen=True):
    """How many messages the broker has not acknowledged yet: all, hellos, and whole contributions."""

    messages: int = 0
    hellos: int = 0
    contributions: int = 0


class DeviceEvent(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Something that happened at the time `now`."""

    now: float


class Tick(DeviceEvent, frozen=True):
    """Time has passed, no message waits to be handled, and no command but Train waits for its answer."""

    flight: MessagesInFlight = MessagesInFlight()


class LinkUp(DeviceEvent, frozen=True):
    """The link is connected, for the first time or again."""

    flight: MessagesInFlight = MessagesInFlight()


class OfferReceived(DeviceEvent, frozen=True):
    """An offer has come and is trusted.

    `to_all`: it is not the answer to a hello. `retained`: the broker kept it, so it may be old. `over`:
    contributions to earlier rounds get no receipt any more.
    """

    offer: Offered
    to_all: bool = True
    retained: bool = False
    over: bool = False
    flight: MessagesInFlight = MessagesInFlight()


class OfferWithdrawn(DeviceEvent, frozen=True):
    """The broker has no offer of a task any more: it is over, or was given up. `task`: empty for any."""

    task: str


class WholeOfferNeeded(DeviceEvent, frozen=True):
    """A compact offer came whose predecessor is not known here."""


class SamplesChanged(DeviceEvent, frozen=True):
    """The aggregator is to hear of a new number of samples."""


class HelloSaid(DeviceEvent, frozen=True):
    """A hello was sent with this number of samples."""

    samples: int


class WorkGateChanged(DeviceEvent, frozen=True):
    """The owner's rules now allow work, or not. `quiet`: they do not allow sending either."""

    allows: bool
    quiet: bool = False


class TaskKnown(DeviceEvent, frozen=True):
    """The backend has made the task of these bundles; empty: it has none."""

    bundles: str


class Previewed(DeviceEvent, frozen=True):
    """The backend says which blobs a round still needs (sha256 in hex)."""

    number: int
    missing: tuple[str, ...]


class BlobArrived(DeviceEvent, frozen=True):
    """A blob is complete and has the right hash."""

    blob: str


class FetchRefused(DeviceEvent, frozen=True):
    """A blob of this offer cannot be had."""

    number: int


class Prepared(DeviceEvent, frozen=True):
    """The base of this offer is made."""

    number: int


class PlanMade(DeviceEvent, frozen=True):
    """The training has chosen a form of update to try, or to sit out."""

    task: str
    round: int


class WorkerDied(DeviceEvent, frozen=True):
    """The worker process died at the form of update that was planned. The next form is tried."""


class Made(DeviceEvent, frozen=True):
    """The training has a result for a round: a contribution, that it sits out, or that it failed."""

    run: str
    round: int
    result: Literal["contribution", "sat out", "failed"]


class Kept(DeviceEvent, frozen=True):
    """A contribution is on disk."""

    entry: WaitingContribution
    flight: MessagesInFlight = MessagesInFlight()


class KeepFailed(DeviceEvent, frozen=True):
    """The contribution to a round cannot be written to disk."""

    run: str
    round: int


class Trained(DeviceEvent, frozen=True):
    """The training of this offer has ended; its result was reported before.

    `evaluate_s`: the seconds that evaluating its model will take, if the backend can tell.
    """

    number: int
    evaluate_s: float | None = None


class TrainingGoesOn(DeviceEvent, frozen=True):
    """The backend trains on its own, at a site's devices: it is to be asked again."""

    number: int


class WorkFailed(DeviceEvent, frozen=True):
    """Work on this offer has failed.

    why: a blob is missing or damaged; the disk has no room; the base cannot be made from what is here
    (`whole`: although the offer names all its blobs); the worker process ended; the round cannot be worked
    on at all; or the work was cancelled.
    """

    number: int
    why: Why
    whole: bool = True


class Sent(DeviceEvent, frozen=True):
    """A contribution was sent, whole or in compact form."""

    seq: int
    compact: bool


class ReceiptReceived(DeviceEvent, frozen=True):
    """A contribution has its receipt, or is to be sent again after `retry_s`, if that is not 0."""

    seq: int
    counts: bool
    retry_s: float = 0.0


class Settled(DeviceEvent, frozen=True):
    """A receipt is taken: the contribution does not wait any longer."""

    seq: int
    counts: bool


class Evaluated(DeviceEvent, frozen=True):
    """The model after this round was evaluated, which took `seconds`; None: not measured."""

    number: int
    seconds: float | None = None


class DeviceCommand(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Something that the runner is to do."""


class SayHello(DeviceCommand, frozen=True):
    """Send a hello with at least this number of samples; answered by HelloSaid."""

    least: int


class SayPaused(DeviceCommand, frozen=True):
    """Tell the aggregator that the device is paused, or that it may work again."""

    yes: bool


class SendPlan(DeviceCommand, frozen=True):
    """Send the last plan that was made."""


class SendSatOut(DeviceCommand, frozen=True):
    """Send a plan to train nothing in this round, because the device is paused."""

    task: str
    round: int


class Send(DeviceCommand, frozen=True):
    """Send a contribution of the outbox; only the `first` time it may go in compact form."""

    seq: int
    first: bool


class JoinTask(DeviceCommand, frozen=True):
    """Go on to another task."""

    task: str


class TaskDone(DeviceCommand, frozen=True):
    """The device's task is done after this round."""

    task: str
    round: int


class RestartDownloads(DeviceCommand, frozen=True):
    """Ask again for blocks: those that were asked for do not come."""


class ForgetAggregator(DeviceCommand, frozen=True):
    """Send nothing in compact form until the next receipt: the aggregator may be another process."""


class ExpectBlobs(DeviceCommand, frozen=True):
    """The first blocks of these blobs of an offer come unasked."""

    number: int
    blobs: tuple[str, ...]


class FetchAhead(DeviceCommand, frozen=True):
    """Ask for the checkpoint of a done task's final model: its aggregator does not stay for long."""

    number: int


class CloseContribution(DeviceCommand, frozen=True):
    """Remove a contribution without a receipt from the outbox."""

    seq: int
    reason: Literal["round over", "task done"]


class RoundEnded(DeviceCommand, frozen=True):
    """Note that a round has ended on this device."""

    run: str
    round: int
    reason: Reason


class FinalModelMissed(DeviceCommand, frozen=True):
    """Note that the final model of a task has not come in time."""

    number: int


class Prune(DeviceCommand, frozen=True):
    """Drop the blobs that neither this offer nor the outbox needs."""

    number: int


class Cancel(DeviceCommand, frozen=True):
    """End the training at its next step."""

    number: int
    reason: CancelReason


class Preview(DeviceCommand, frozen=True):
    """Find out what a round still needs; answered by Previewed."""

    number: int


class Fetch(DeviceCommand, frozen=True):
    """Fetch these blobs and no others; BlobArrived or FetchRefused answer in time."""

    number: int
    blobs: tuple[str, ...]


class Prepare(DeviceCommand, frozen=True):
    """Make the base of a round; answered by Prepared."""

    number: int


class Train(DeviceCommand, frozen=True):
    """Train for a round, or ask how it goes on in the background; answered by Trained, TrainingGoesOn."""

    number: int


class Hold(DeviceCommand, frozen=True):
    """Hold the training at its next step while the device is paused."""


class Keep(DeviceCommand, frozen=True):
    """Write the contribution to a round to disk; answered by Kept, KeepFailed."""

    run: str
    round: int


class Settle(DeviceCommand, frozen=True):
    """Take a receipt and remove its contribution; answered by Settled. `first_s`: when it was sent."""

    seq: int
    counts: bool
    first_s: float | None


class Evaluate(DeviceCommand, frozen=True):
    """Evaluate the model after a round; answered by Evaluated."""

    number: int


class KeepFinalModel(DeviceCommand, frozen=True):
    """Keep the final model of a task and evaluate it; answered by Evaluated."""

    number: int


OfferCommand = Preview | Fetch | Prepare | Train | Evaluate | KeepFinalModel
"""Commands to work on an offer, by its number."""
BLOCKING = (Preview, Fetch, Prepare, Train, Hold, Keep, Settle, Evaluate, KeepFinalModel)
"""Commands that events answer, or WorkFailed."""
