"""This device's profile for one bundle: measured in a few seconds, remembered by the bundle's hash."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from models.engine import DeviceModel, Inputs
from models.manifest import Manifest
from profiles import DeviceProfile, Speed, host_profile, measure_speed
from profiles.measure import Trial

from .errors import OutOfMemory
from .watching import Pretence

log = logging.getLogger(__name__)


def measure(model: DeviceModel, clock: Callable[[], float], batch: int = 32) -> Speed:
    """Time forward passes, training steps and losses of this bundle, in under 3 seconds.

    One graph is held at a time. What the memory does not allow is left out; raises OutOfMemory when that is
    even a forward pass.
    """
    graphs = model.manifest.graphs
    x, y = drawn(model.manifest, batch)
    wanted = ("forward", *(f"train.{tunable}" for tunable in model.manifest.sets), "loss.all")
    trials = {}
    for name in (name for name in wanted if name in graphs):
        held = _Held(model, partial(_runnable, model, name, x, y))
        trials[name] = Trial(held.run, batch, graphs[name].flops, held.close)
    return measure_speed(trials, clock, left_out=OutOfMemory)


class _Held:
    """A graph from its first run until it is closed."""

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


def drawn(manifest: Manifest, samples: int) -> tuple[Inputs, NDArray[np.int64]]:
    """Samples as a bundle takes them, always the same: standard normal, or any ids; labels of any class."""
    rng, given = np.random.default_rng(0), manifest.input
    shape = (samples, *given.shape)
    ids = given.vocabulary
    x: Inputs = rng.standard_normal(shape, np.float32) if ids is None else rng.integers(0, ids, shape)
    return x, rng.integers(0, len(manifest.labels), samples)


def _runnable(model: DeviceModel, name: str, x: Inputs, y: NDArray[np.int64]) -> Callable[[], object]:
    if name == "forward":
        return partial(model.forward, x)
    what, tunable = name.split(".")
    if what == "train":
        return partial(model.trainer(tunable).loss_and_grads, x, y)
    return partial(model.probe(tunable).loss, x, y)


def profile(speed: Speed, engine: str, pretence: Pretence | None = None) -> DeviceProfile:
    """This machine, or the one it pretends to be, at this speed on this engine, as it is now."""
    if pretence is None:
        return host_profile(speed, engine)
    resident = psutil.Process().memory_info().rss
    other = pretence.profile
    return replace(other, speed=speed, engine=engine, memory=replace(other.memory, resident_bytes=resident))


class SpeedCache:
    """Measured speeds in one JSON file, by bundle hash and device. A damaged file is measured anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Speed] = {}
        if path.exists():
            try:
                self._known = msgspec.json.decode(path.read_bytes(), type=dict[str, Speed])
            except msgspec.MsgspecError as error:
                log.warning("%s is not readable (%s): measuring anew", path, error)

    def get(self, key: str, measured: Callable[[], Speed]) -> Speed:
        """The speed kept under this key, or what `measured` returns, which is then kept."""
        if key not in self._known:
            self._known[key] = measured()
            temporary = self._path.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self._known)))
            temporary.replace(self._path)
        return self._known[key]


def cache_key(bundle_sha: str, engine: str, pretence: Pretence | None) -> str:
    """What a measurement holds for: this bundle, on this engine, on this (or the pretended) device."""
    device = "here" if pretence is None else f"{pretence.profile.name}/{pretence.slow:g}"
    return f"{bundle_sha}@{device}@{engine}"
