"""One device for some rounds of one kind, in a process of its own: what it predicted, and what it took."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path

import msgspec

from device_runtime.broker.wire.messages import Base, Blob, Kind, Offer
from device_runtime.device.errors import OutOfMemory
from device_runtime.device.measurement.measure_one import peak_bytes
from device_runtime.device.selection.choose import MAIN
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.local_task import DeviceTask, Settings
from device_runtime.device.training.one_task import RoundInputs
from device_runtime.device.training.work import Listener, WorkOutcome
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.interface.device_half import NO_TENSORS

_NO_BLOB = Blob(bytes(32), 0)


@dataclass(frozen=True)
class Order:
    """A kind with its settings, as written for an offer, on a bundle and data; the device's folder."""

    bundle: str
    data: str
    folder: str
    kind: Kind
    rounds: int


@dataclass(frozen=True)
class Seen:
    """One round: seconds of computing and bytes of the whole process, predicted and measured.

    `limit_bytes`: what the device took to be its own when it chose. `why`: what did not fit, or was given up.
    """

    label: str
    predicted_s: float = 0.0
    seconds: float = 0.0
    predicted_bytes: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0
    has_update: bool = False
    tried: bool = False
    why: str = ""


def rounds(order: Order) -> list[Seen]:
    """Joins as a device does, and does the rounds. A device that cannot join gives one that was not tried."""
    bundle, name = Bundle.open(Path(order.bundle)), order.kind.name
    settings = Settings("one", Path(order.data), Path(order.folder))
    try:
        task = DeviceTask(settings, {MAIN: bundle}, time.perf_counter, LinkSpeed())
    except OutOfMemory as error:
        return [Seen(name, why=f"does not join: {error}")]
    base = bundle.weights()
    return [
        _round(task, RoundInputs(_offer(order.kind, number), MAIN, base, NO_TENSORS))
        for number in range(order.rounds)
    ]


def _round(task: DeviceTask, inputs: RoundInputs) -> Seen:
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's peak of this process begins anew
    outcome = task.train_round(inputs, inf, Listener(lambda _: None, lambda _: None))
    return observation(
        outcome, task.engine_guard.limit_bytes, peak_bytes(Path("/proc/self/status").read_text())
    )


def observation(outcome: WorkOutcome, limit_bytes: int, peak: int) -> Seen:
    """Of the form that was made in the end, or else of the first that was thought of."""
    chosen, has_update = outcome.plan.chosen, outcome.update is not None
    candidate = chosen or outcome.plan.candidates[0]
    cost = candidate.cost
    return Seen(
        label=candidate.label,
        predicted_s=cost.compute_s if cost else 0.0,
        seconds=outcome.timings[-1].seconds if has_update and outcome.timings else 0.0,
        predicted_bytes=cost.peak_memory_bytes if cost else 0,
        peak_bytes=peak,
        limit_bytes=limit_bytes,
        has_update=has_update,
        tried=has_update or bool(outcome.gave_up),
        why="; ".join(outcome.reasons),
    )


def main() -> None:
    """Reads an order, writes what was seen, as MessagePack."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.msgpack.encode(rounds(order)))


def _offer(kind: Kind, number: int) -> Offer:
    return Offer(
        task="prediction",
        run="prediction",
        round=number + 1,
        seed=number,
        deadline_s=0.0,
        remaining_s=0.0,
        kinds=(kind,),
        bundle=_NO_BLOB,
        base=Base(checkpoint=(_NO_BLOB,), sha=_NO_BLOB.sha),
    )
