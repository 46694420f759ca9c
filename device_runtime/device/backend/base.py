"""The interface of a backend, which works on rounds in this process or in a worker process.

The link, the files and the owner's rules stay on the device's side of it; all that needs numpy, an engine,
samples or a model is on the other (`in_process`, `subprocess`). All that passes between them can be
serialized.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, Protocol

import msgspec

from device_runtime.broker.wire.messages import Blob, Contribution, Hello, Mask, Metrics, Offer, Plan
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.device.traffic import LinkSpeed

if TYPE_CHECKING:
    from device_runtime.device.training.settings import Settings
    from device_runtime.device.training.work import Decision, WorkOutcome

Bundles = tuple[tuple[str, Blob], ...]
"""By member of the family; the main model's by ""."""
LEFT = "left"
"""Folder, in the device's own, of what codecs left out of updates."""


class RoundPreview(msgspec.Struct, frozen=True):
    """The member of the family for a round (None: not known yet), and the blobs to fetch before it."""

    member: str | None
    missing: tuple[Blob, ...]


class WorkResult(msgspec.Struct, frozen=True):
    """The result of a round's work: the contribution, without boot and seq, and the bytes of its upload.

    The contribution is None if the device sits out, for these `reasons`, or if it cannot be kept (`trouble`).
    """

    run: str
    round: int
    message: Contribution | None = None
    bytes_up: int = 0
    reasons: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class BackendListener:
    """Callbacks of a round's work.

    `progress`, from 0 to 1, and `pause_point`, after each run of an engine, raise as
    `Runner.pause_point` does. `paused_s`: seconds that the work has been paused. `decided`: the plan that
    is tried now. `on_result`: the result.
    `answered`: whether this round's work was done before. `waiting`: the rounds of a run whose contributions
    have no receipt. `died`: the worker process died at the form that was planned.
    """

    progress: Callable[[float], None]
    pause_point: Callable[[], None]
    paused_s: Callable[[], float]
    decided: Callable[[Offer, Plan, float], None]
    on_result: Callable[[WorkResult], None]
    answered: Callable[[Offer], bool]
    waiting: Callable[[str], Collection[int]]
    died: Callable[[], None] = lambda: None


class WorkBackend(Protocol):
    """Works on one task at a time: that of the offer that was previewed last.

    All methods raise DataError, ModelError, OutOfMemory for errors that waiting does not solve, RoundLeftOut
    for what is wrong with one round, StaleBase and BlobError for what must be fetched anew, WorkDied.
    """

    @property
    def bundles(self) -> Bundles:
        """Bundles of the task that is known here; empty if none is."""

    def hello(self, boot: int) -> Hello:
        """The device's hello, for a task that is known."""

    def warm_up(self) -> None:
        """Get ready: there will be work soon."""

    def preview(self, current: OpenRound) -> RoundPreview:
        """What a round still needs before its work. Also makes the round's task once its bundles are here."""

    def prepare(self, current: OpenRound) -> None:
        """Make the base of a round. Nothing may be missing."""

    def work(self, current: OpenRound, listener: BackendListener) -> bool:
        """Do the round's work. False: it goes on in the background; call `work` again soon.

        Raises what `listener` raises.
        """

    def evaluate_personal_model(self, current: OpenRound, pause_point: Callable[[], None]) -> None:
        """Evaluate the device's own model after a round, once nothing waits to be sent."""

    def keep_final_model(self, over: OpenRound, pause_point: Callable[[], None]) -> None:
        """Keep the final model of a task that is done, and evaluate it. Nothing may be missing."""

    def receipt_received(self, message: Contribution, counts: bool) -> None:
        """The receipt of a contribution has come; `counts`: the contribution is accepted."""

    def check_paused_work(self) -> None:
        """Called while work is paused.

        Raises OutOfMemory if memory has run out, WorkDied if the work has not paused.
        """

    def end_if_idle(self) -> None:
        """End the worker process, if there is one, after some time without work. Called again and again."""

    def save_state(self) -> None:
        """Save to disk the state that is in memory only."""

    def close(self) -> None:
        """End the backend. May be called twice."""


MakeBackend = Callable[["Settings", WorkGate, LinkSpeed], WorkBackend]


def bundles_of(offer: Offer) -> Bundles:
    """The bundles of an offer, which identify its task."""
    return (("", offer.bundle), *((member.name, member.bundle) for member in offer.family))


def bare_hello(boot: int) -> Hello:
    """The hello before the task is known here: `num_examples` 0 says that the device is not ready."""
    return Hello(boot=boot, num_examples=0, profile="", memory_bytes=0, engine="")


def plan_message(offer: Offer, decision: Decision) -> Plan:
    """The decision and its reasons; kind "" when the device sits out."""
    chosen = decision.plan.chosen
    cost = chosen.cost if chosen else None
    return Plan(
        task=offer.task,
        round=offer.round,
        kind=chosen.label if chosen else "",
        seconds=cost.seconds if cost else 0.0,
        memory_bytes=cost.peak_memory_bytes if cost else 0,
        energy_j=cost.energy_j if cost else 0.0,
        reasons=decision.reasons,
    )


def sat_out_plan(task: str, number: int, reasons: tuple[str, ...]) -> Plan:
    """The plan of a device that trains nothing in a round, for these reasons."""
    return Plan(task=task, round=number, kind="", seconds=0.0, memory_bytes=0, energy_j=0.0, reasons=reasons)


def contribution_message(
    offer: Offer, outcome: WorkOutcome, body: bytes | Blob, mask: Mask | None = None
) -> Contribution:
    """The contribution with its content inline, or its blob; the sender fills in boot and seq.

    The loss of a masked update is part of its content. Raises ValueError for an outcome without an update.
    """
    update = outcome.update
    if update is None:
        raise ValueError("nothing was contributed")
    return Contribution(
        task=offer.task,
        run=offer.run,
        round=offer.round,
        boot=0,
        seq=0,
        kind=update.kind,
        num_examples=update.num_examples,
        metrics=Metrics(
            train_loss=update.train_loss if mask is None else nan,
            train_time_ms=round(1e3 * outcome.train_time_s),
            energy_mj=round(1e3 * outcome.energy_j),
            peak_memory_kib=outcome.peak_memory_bytes // 1024,
            energy_source=outcome.energy.source if outcome.energy.is_measured else "",
            energy_off_percent=max(1, round(100 * outcome.energy.uncertainty)),
            epsilon_milli=0 if isnan(outcome.epsilon) else ceil(1000 * outcome.epsilon),
        ),
        body=body if isinstance(body, bytes) else b"",
        blob=body if isinstance(body, Blob) else None,
        form=update.variant,
        mask=mask,
    )
