"""Measures this device's speed and memory for one bundle in a few seconds, to make its profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.device.errors import OutOfMemory
from device_runtime.machine_readings import collect_and_trim, resident_bytes
from device_runtime.models.bundles.manifest import ARENA_FACTOR, TRAINING, Graph, Manifest
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.engines.base import DeviceModel, Gradients, Inputs
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import DeviceProfile, Speed, host_profile, measure_speed
from device_runtime.profiles.cost import session_bytes
from device_runtime.profiles.device import Emulation
from device_runtime.profiles.measure import Clocks, SpeedTrial

from .engine_guard import EngineGuard

STEP = Sgd(1e-3, momentum=0.5, weight_decay=1e-5)
"""The optimizer of most kinds."""

BATCH = 32
"""Samples of one run, if memory allows."""

HEAD, HEAD_STEPS = "head", 50
"""The classifier alone, and how many of its steps are timed together: one takes only microseconds."""


def ready(model: DeviceModel) -> None:
    """Load the engine, so that its memory counts as the idle process's; no graph stays open.

    Raises OutOfMemory when the memory does not even allow a forward pass.
    """
    x, _ = random_samples(model.manifest, 1)
    model.forward(x)
    model.unload()
    collect_and_trim()


def device_speed(model: DeviceModel, clocks: Clocks, engine_guard: EngineGuard) -> Speed:
    """The speed of this bundle here, and the memory of its graphs; `engine_guard` is that of the model.

    Raises OutOfMemory when the memory does not even allow a forward pass.
    """
    ready(model)
    engine_guard.forget()
    rows = {name: graph.rows(BATCH, engine_guard.run_bytes) for name, graph in model.manifest.graphs.items()}
    speed = measure(model, clocks, rows)
    holds = held_bytes(engine_guard.grown, model.manifest.graphs, rows)
    return replace(speed, held_bytes=holds, run_bytes=ARENA_FACTOR * engine_guard.run_bytes)


def measure(model: DeviceModel, clocks: Clocks, rows: Mapping[str, int]) -> Speed:
    """Time forward passes, training steps and losses of this bundle, in about 3 seconds.

    `rows` are the samples of one run, by graph. One graph is open at a time. A graph that the memory does not
    allow is predicted; raises OutOfMemory if that is even the forward pass.
    """
    ready(model)
    graphs = model.manifest.graphs
    x, y = random_samples(model.manifest, max(rows.values()))
    names = ("forward", "train.all", "loss.all", *(f"train.{tunable}" for tunable in model.manifest.sets))
    trials = {}
    for name in (name for name in dict.fromkeys(names) if name in graphs):
        n = rows[name]
        trial = _Held(model, partial(runnable, model, name, x[:n], y[:n]))
        trials[name] = SpeedTrial(trial.run, n, graphs[name].flops, trial.close)
    return completed(
        measure_speed({**trials, HEAD: _head_steps(model)}, clocks, left_out=OutOfMemory), graphs
    )


def completed(speed: Speed, graphs: Mapping[str, Graph]) -> Speed:
    """The speed with the graphs that were not measured.

    They are taken to be as fast, operation for operation, as measured ones of their sort, and as slow to open
    for their size.
    """
    measured = [name for name in graphs if name in speed.seconds]
    seconds, opening = ({name: s[name] for name in measured} for s in (speed.seconds, speed.opening))
    a_byte = sum(opening.values()) / sum(graphs[name].bytes for name in measured)
    for name, graph in graphs.items():
        if name not in measured:
            alike = _alike(name, measured)
            flops = sum(graphs[other].flops for other in alike)
            seconds[name] = graph.flops * sum(speed.seconds[other] for other in alike) / max(flops, 1)
            opening[name] = graph.bytes * a_byte
    source = f"{speed.source}; {len(graphs) - len(measured)} of {len(graphs)} graphs by their operations"
    return Speed(speed.flops_per_s, seconds, source, opening, speed.seconds.get(HEAD, 0.0))


def _alike(name: str, measured: Sequence[str]) -> Sequence[str]:
    """Measured graphs that do the same on another set; else those that train, or do not, alike; else all."""
    what = name.partition(".")[0]
    same = [other for other in measured if other.partition(".")[0] == what]
    return same or [other for other in measured if trains(other) == trains(name)] or measured


def _head_steps(model: DeviceModel) -> SpeedTrial:
    """Steps of the linear classifier on few samples, with hardly any arithmetic."""
    head = SoftmaxHead(model.manifest, model.weights)
    features, y = np.zeros((4, model.manifest.head.features), np.float32), np.zeros(4, np.int64)
    return SpeedTrial(partial(head.train, features, y, [np.arange(4)] * HEAD_STEPS, STEP), HEAD_STEPS, 0.0)


class _Held:
    """Keeps a graph open from its first run until it is closed."""

    def __init__(self, model: DeviceModel, opened: Callable[[], Callable[[], object]]) -> None:
        self._model, self._opened = model, opened
        self._run: Callable[[], object] | None = None

    def run(self) -> None:
        if self._run is None:
            self._run = self._opened()
        self._run()

    def close(self) -> None:
        self._run = None
        self._model.unload()
        collect_and_trim()


def random_samples(manifest: Manifest, samples: int) -> tuple[Inputs, NDArray[Any]]:
    """Random samples for a bundle, always the same: standard normal, or any ids; labels of any class.

    Targets in columns are 0 or 1.
    """
    rng, spec = np.random.default_rng(0), manifest.input
    shape = (samples, *spec.shape)
    ids = spec.vocabulary
    x: Inputs = rng.standard_normal(shape, np.float32) if ids is None else rng.integers(0, ids, shape)
    if (target := manifest.target).has_columns:
        return x, rng.integers(0, 2, (samples, *target.shape)).astype(np.float32)
    return x, rng.integers(0, len(manifest.labels), samples)


def runnable(model: DeviceModel, name: str, x: Inputs, y: NDArray[Any]) -> Callable[[], object]:
    """Opens a graph (forward, loss.SET or train.SET); returns a function that runs it on these samples."""
    if name == "forward":
        return partial(model.forward, x)
    what, tunable = name.split(".")
    if what == "train":
        return _training(model.trainer(tunable, batch=len(x)), x, y)
    return partial(model.probe(tunable).loss, x, y)


def _training(trainer: Gradients, x: Inputs, y: NDArray[Any]) -> Callable[[], object]:
    """A training step, the optimizer's included."""
    steps = STEP.start(trainer.params.vector)

    def step() -> None:
        trainer.loss_and_grads(x, y)
        steps.step(trainer.params.vector, trainer.grads.vector)

    return step


def profile(speed: Speed, engine: str, emulation: Emulation | None = None) -> DeviceProfile:
    """The profile of this machine, or of the emulated one, with this speed and engine, as of now."""
    if emulation is None:
        return host_profile(speed, engine)
    resident = resident_bytes()
    other = emulation.profile
    return replace(other, speed=speed, engine=engine, memory=replace(other.memory, resident_bytes=resident))


def clocks(passed: Callable[[], float], settings: EngineSettings, emulation: Emulation | None) -> Clocks:
    """Clocks to measure by.

    Processor time of this process is used only on a processor: it says nothing of a GPU, nor of an emulated
    device.
    """
    here = emulation is None and settings.device == "cpu"
    return Clocks(passed, time.process_time if here else passed)


def cache_key(bundle_sha: str, engine: str, emulation: Emulation | None) -> str:
    """Names a measurement: of this bundle, on this engine, on this (or the emulated) device."""
    device = "here" if emulation is None else f"{emulation.profile.name}/{emulation.slow:g}"
    return f"{bundle_sha}@{device}@{engine}"


OFF, TRAINING_OFF = 1.0, 1.4
"""Most bytes that a graph holds, as a multiple of those of its shapes: without training, and with.

Measured 0.1 to 0.8, and 0.3 to 1.25 with batches that end in a smaller run, and a tenth more; see
docs/profiling.md.
"""
ALIKE, APART = 1.1, 1.3
"""Graphs whose live bytes a sample are up to ALIKE times fewer count as alike.

Their multiples of the bytes of their shapes differ by up to APART times (measured up to 1.3).
"""


def held_bytes(
    sizes: Mapping[str, int], graphs: Mapping[str, Graph], rows: Mapping[str, int]
) -> dict[str, int]:
    """Bytes that each graph holds with `rows` samples in it, as seen or predicted.

    A graph that was not seen is predicted by its shapes, which are taken to be nearly as far off as those of
    its sort (training, or not) with as many live bytes a sample, or more.
    """
    shaped = {n: session_bytes(graph.bytes) + graph.memory_bytes(rows[n]) for n, graph in graphs.items()}

    def off(name: str) -> float:
        training, live = trains(name), graphs[name].bytes_per_sample
        alike = [
            sizes[other] / shaped[other]
            for other in sizes
            if trains(other) == training and ALIKE * graphs[other].bytes_per_sample >= live
        ]
        usual = TRAINING_OFF if training else OFF
        most = max(alike, default=usual)
        return max(most, min(usual, APART * most))

    return {name: sizes[name] if name in sizes else round(off(name) * size) for name, size in shaped.items()}


def trains(graph: str) -> bool:
    """Whether a graph of this name computes gradients."""
    return graph.partition(".")[0] in TRAINING
