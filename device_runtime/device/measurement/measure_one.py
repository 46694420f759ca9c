"""Measures one kind of update, once, in a process of its own, so that its memory is its own."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import msgspec
import numpy as np

from device_runtime.broker.servers.dependent_process import end_when_alone
from device_runtime.broker.wire.messages import Kind
from device_runtime.device import energy as meters
from device_runtime.device.energy import Account
from device_runtime.device.engine.engine_guard import guard_engine, own_memory
from device_runtime.device.engine.profiling import profile, random_samples
from device_runtime.device.policy.privacy_budget import PrivacyGuard
from device_runtime.device.selection.choose import MAIN, Candidate
from device_runtime.device.training.work import Assignment, RealWorker, WorkOutcome, train_richest
from device_runtime.machine_readings import collect_and_trim
from device_runtime.models import data as local_data
from device_runtime.models.available_engines.available import engine_choice, open_model
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.profiles import Speed
from device_runtime.profiles.device import Emulation
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import ENVELOPE_BYTES, workload


@dataclass(frozen=True)
class EmulatedDevice:
    """The device to emulate, as `Emulation.of` takes it."""

    name: str
    slow: float = 1.0
    uplink: float | None = None
    downlink: float | None = None


@dataclass(frozen=True)
class MeasuredDevice:
    """The device that measures: its engine and speed, its memory, its meter.

    `idle_w`: power at rest by the meter; nan if that is not known.
    """

    speed: Speed
    engine: EngineSettings
    memory_bytes: int | None = None
    emulated: EmulatedDevice | None = None
    meter: str = meters.AUTO
    idle_w: float = nan

    @property
    def emulation(self) -> Emulation | None:
        other = self.emulated
        return None if other is None else Emulation.of(other.name, other.slow, other.uplink, other.downlink)


@dataclass(frozen=True)
class MeasureOrder:
    """A kind to measure, as a task offers it, on a bundle and samples (`data`, or so many random ones)."""

    bundle: str
    offered: Kind
    data: str
    samples: int
    device: MeasuredDevice

    @property
    def kind(self) -> str:
        """The kind's name."""
        return self.offered.name


@dataclass(frozen=True)
class MeasuredFigures:
    """Figures of one run, beside the predicted ones. `why`: why nothing was made; the rest is then 0 or nan.

    Seconds are of computing; `joules` are of the same time and of all that the meter sees, `above_idle_j`
    without idle power (nan if that is not known), with the meter's error `above_idle_off_j`; `peak_bytes` is
    of the whole process.
    """

    kind: str
    seconds: float = nan
    predicted_s: float = nan
    joules: float = nan
    source: str = meters.MODELLED
    uncertainty: float = 1.0
    above_idle_j: float = nan
    above_idle_off_j: float = 0.0
    peak_bytes: int = 0
    predicted_peak_bytes: int = 0
    bytes_up: int = 0
    predicted_bytes_up: int = 0
    bytes_down: int = 0
    why: str = ""


def samples(order: MeasureOrder, bundle: Bundle) -> LocalData:
    """The samples of the order, or so many random ones, evenly of every class. Raises DataError."""
    if order.data:
        return local_data.load(Path(order.data), bundle.manifest, bundle.texts)
    x, y = random_samples(bundle.manifest, order.samples)
    if bundle.manifest.target.has_columns:
        return LocalData(x, y)
    return LocalData(x, np.arange(order.samples) % len(bundle.manifest.labels))


def run_order(order: MeasureOrder) -> MeasuredFigures:
    """Run the order once. Raises DataError, ModelError, KindError, MeterError."""
    device, bundle = order.device, Bundle.open(find_bundle(order.bundle))
    manifest, emulation = bundle.manifest, device.emulation
    data, kind = samples(order, bundle), registry.read(order.offered)
    watch = guard_engine(emulation, device.memory_bytes)
    watch.run_bytes = device.engine.run_bytes
    model = open_model(bundle, device.engine, watch=watch)
    base = bundle.weights()
    model.load(base)
    model.forward(data.x[:1])  # as a device that has joined, which ran the bundle to measure itself
    model.unload()
    collect_and_trim()
    here = own_memory(
        profile(device.speed, str(engine_choice(bundle, device.engine)), emulation),
        device.memory_bytes,
    )
    load = workload(manifest, data.class_counts(len(manifest.labels)))
    worker = RealWorker(
        "measure", {MAIN: model}, data, {MAIN: load}, watch, time.perf_counter,
        PrivacyGuard.of(Path(), Path(order.data)), account=_account(device),
    )  # fmt: skip
    outcome = train_richest(worker, here, Assignment((kind,), seed=0, closes_at=inf))
    update, chosen = outcome.update, outcome.plan.chosen
    if update is None or chosen is None:
        return MeasuredFigures(order.kind, why="; ".join(outcome.reasons) or "nothing was made")
    body = capabilities.codec_of(chosen.strategy).encode(update.tensors, base, NO_TENSORS).body
    return figures(chosen, outcome, len(body) + ENVELOPE_BYTES)


def figures(chosen: Candidate, outcome: WorkOutcome, bytes_up: int) -> MeasuredFigures:
    """Figures of an outcome, beside the predicted cost."""
    cost, energy = chosen.cost, outcome.energy
    return MeasuredFigures(
        kind=chosen.label,
        seconds=outcome.train_time_s,
        predicted_s=cost.compute_s if cost else nan,
        joules=energy.joules,
        source=energy.source,
        uncertainty=energy.uncertainty,
        above_idle_j=energy.above_idle_j,
        above_idle_off_j=energy.above_idle_off_j,
        peak_bytes=peak_bytes(_own_status()) or outcome.peak_memory_bytes,
        predicted_peak_bytes=cost.peak_memory_bytes if cost else 0,
        bytes_up=bytes_up,
        predicted_bytes_up=cost.bytes_up if cost else 0,
        bytes_down=cost.bytes_down if cost else 0,
        why="; ".join(outcome.gave_up),
    )


def peak_bytes(status: str) -> int:
    """The most memory that a process has held, from Linux's /proc/PID/status; 0 if it does not say.

    It is of the process itself; getrusage's figure of a child starts at its parent's.
    """
    match = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.M)
    return int(match[1]) * 1024 if match else 0


def main() -> None:
    """Reads an order from standard input and writes its figures to the open file of the last argument.

    Both are in MessagePack, which has nan. Ends when the process ends that reads its standard output.
    """
    end_when_alone(1)
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=MeasureOrder)
    figures = msgspec.msgpack.encode(run_order(order))
    with open(int(sys.argv[1]), "wb") as answer:  # noqa: PTH123 - a number
        answer.write(figures)


def _account(device: MeasuredDevice) -> Account:
    if device.emulated is not None:
        return Account()
    return Account(meters.find_meter(device.meter).meter, time.process_time, device.idle_w)


def _own_status() -> str:
    try:
        return Path("/proc/self/status").read_text()
    except OSError:
        return ""
