"""Checks what this installation can do by trying it; each finding says what to do about it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Literal

import numpy as np

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.wire.durable_files import free_bytes, unsupported
from device_runtime.broker.wire.messages import RELEASE
from device_runtime.device import energy as meters
from device_runtime.device.engine.engine_guard import limit_bytes, run_bytes
from device_runtime.device.engine.profiling import random_samples
from device_runtime.device.errors import PolicyError
from device_runtime.device.policy import privacy_budget, work_gate
from device_runtime.device.policy.privacy_budget import SpentPrivacy
from device_runtime.device.policy.rules import Policy
from device_runtime.extras import EXTRAS
from device_runtime.machine_readings import core_count, resident_bytes
from device_runtime.models.available_engines.available import engine_choices, open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.engines.blocked.layers import block_size
from device_runtime.models.errors import DataError, EngineError, ModelError
from device_runtime.profiles.cost import session_bytes
from device_runtime.profiles.measure import UNKNOWN_POWER
from device_runtime.strategies.terms.accountant import PrivacyError
from device_runtime.strategies.terms.dp_sgd import DpSgd

State = Literal["ok", "missing", "problem"]

OLDEST_PYTHON, OLDEST_NUMPY = (3, 10), (1, 26)
BATCH = 32
COPIES = 4
"""How many files of a bundle's size may be on disk: bundle, checkpoint, base, and an unsent update."""

EXPECTED_DROP = 1e-3  # share of the loss, in the step that is tried
TOLERANCE = 0.2  # share of that drop, for the curvature of the loss


@dataclass(frozen=True)
class Finding:
    """One line: a `problem` keeps a device from taking part, `missing` is something it can do without."""

    what: str
    state: State
    found: str
    advice: str = ""


def machine() -> Iterator[Finding]:
    """This program, Python, the platform, cores."""
    yield Finding("version", "ok", RELEASE)
    version = platform.python_version()
    old = sys.version_info < OLDEST_PYTHON
    advice = f"install Python {_dotted(OLDEST_PYTHON)} or newer" if old else ""
    yield Finding("python", "problem" if old else "ok", version, advice)
    narrow = sys.maxsize < 2**32
    what = f"{platform.system()} {platform.machine()}, {32 if narrow else 64} bits"
    advice = "install a 64-bit system: ONNX Runtime has no 32-bit build" if narrow else ""
    yield Finding("platform", "problem" if narrow else "ok", what, advice)
    cores = core_count()
    yield Finding("cores", "ok", f"{cores}; training takes one thread, or `join --threads N`")
    old = tuple(int(part) for part in np.__version__.split(".")[:2]) < OLDEST_NUMPY
    advice = f"pip install 'numpy>={_dotted(OLDEST_NUMPY)}'" if old else ""
    yield Finding("numpy", "problem" if old else "ok", np.__version__, advice)


def engines(bundle: Bundle) -> Iterator[Finding]:
    """Each engine, and which one runs this bundle."""
    choices = engine_choices(bundle)
    for choice in choices:
        what, name = f"engine {choice.name}", choice.version
        if choice.usable:
            text = f"{name}, chosen: " if choice.chosen else f"{name}, not chosen: "
            yield Finding(what, "ok", text + choice.reason)
        else:
            yield Finding(what, "missing", choice.reason)
        if choice.usable and choice.name == "onnxruntime":
            block = block_size()
            layout = (
                f"in blocks of {block} channels" if block else "without the blocked layout, which is faster"
            )
            yield Finding("convolutions", "ok", f"{choice.name} trains them {layout}")
    if not any(choice.chosen for choice in choices):
        yield Finding("engine", "problem", "none can run this bundle", "pip install onnxruntime")


def work(bundle: Bundle, opened: Callable[[Bundle], DeviceModel] = open_model) -> Iterator[Finding]:
    """Try a forward pass, and a training step on the first of the bundle's sets, and check the results."""
    sets = [tunable for tunable in bundle.manifest.sets if f"train.{tunable}" in bundle.manifest.graphs]
    trials: dict[str, Callable[[DeviceModel], str]] = {"forward pass": _forward}
    if sets:
        trials["training step"] = lambda model: _step(model, sets[0])
    try:
        model = opened(bundle)
    except ModelError as error:
        yield Finding("forward pass", "problem", str(error), "install an engine")
        return
    for what, trial in trials.items():
        try:
            yield Finding(what, "ok", trial(model))
        except ModelError as error:
            yield Finding(what, "problem", str(error), "reinstall the engine, or take another version of it")
    if not sets:
        yield Finding("training step", "missing", f"bundle {bundle.manifest.name} has no training graphs")


def memory(bundle: Bundle) -> Finding:
    """Free memory against what each graph needs, in runs of as many samples as there is memory for."""
    free = limit_bytes(None, None) - resident_bytes()
    run = run_bytes(free)
    graphs = bundle.manifest.graphs.items()
    needed = {
        name: session_bytes(graph.bytes) + graph.memory_bytes(graph.rows(BATCH, run))
        for name, graph in graphs
    }
    most = max(needed, key=lambda name: needed[name])
    text = f"{_mb(free)} free; {most} needs most, {_mb(needed[most])}"
    if free >= needed[most]:
        return Finding("memory", "ok", text)
    if free < needed["forward"]:
        return Finding("memory", "problem", text, "end other programs, or take a smaller bundle")
    fitting = [name for name, size in needed.items() if size <= free]
    return Finding("memory", "missing", text, f"fitting: {', '.join(fitting)}")


def extras() -> Iterator[Finding]:
    """Optional extras that are installed."""
    for extra, (modules, use) in EXTRAS.items():
        lacking = [module for module in modules if util.find_spec(module) is None]
        if lacking:
            advice = f"pip install 'device-runtime[{extra}]' for {use}"
            yield Finding(f"extra {extra}", "missing", f"no {', '.join(lacking)}", advice)
        else:
            yield Finding(f"extra {extra}", "ok", f"for {use}")


def privacy(folder: Path) -> Iterator[Finding]:
    """What devices have spent of their samples' privacy; `folder` is one device's, or holds several."""
    for path in sorted((*folder.glob(privacy_budget.FILE), *folder.glob(f"*/{privacy_budget.FILE}"))):
        what = "privacy" if path.parent == folder else f"privacy of {path.parent.name}"
        try:
            budget, delta = SpentPrivacy(path), DpSgd().delta
            spent = f"epsilon {budget.epsilon(delta):.2f} at delta {delta:g} spent"
            yield Finding(what, "ok", f"{spent}, {budget.rounds} rounds at most with any sample")
        except (DataError, PrivacyError) as error:
            yield Finding(what, "missing", str(error))


def broker() -> Finding:
    """Mosquitto, which serves more devices than the embedded broker."""
    if program := mosquitto.find():
        return Finding("mosquitto", "ok", program)
    return Finding("mosquitto", "missing", "not found", "only who serves needs a broker: install mosquitto")


def storage(folder: Path, bundle: Bundle) -> Finding:
    """Whether the folder can be written to, or made, has room for a task's files, and can make them last."""
    place = next(path for path in (folder, *folder.parents) if _is_there(path))
    advice = "give another folder with --state, or the right to write there"
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return Finding("storage", "problem", f"{folder} cannot be written to", advice)
    try:
        lacking = unsupported(place)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return Finding("storage", "problem", f"{folder} cannot be written to: {why}", advice)
    size = bundle.manifest.weights.bytes + sum(graph.bytes for graph in bundle.manifest.graphs.values())
    needed, free = COPIES * size, free_bytes(place)
    room = "its file system does not say how much is" if free is None else _mb(free)
    text = f"{folder}: {room} free, a task keeps up to {_mb(needed)}"
    if free is not None and free < needed:
        return Finding("storage", "problem", text, "free some space, or give another folder with --state")
    if lacking:
        advice = "for a folder on a disk of this machine, give --state"
        return Finding(
            "storage", "missing", f"{text}; its file system is limited: {'; '.join(lacking)}", advice
        )
    return Finding("storage", "ok", text)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it may not be entered
        return False


def _forward(model: DeviceModel) -> str:
    """Checks that the logits are what the bundle's head gives for the features."""
    x, _ = random_samples(model.manifest, BATCH)
    passed, head = model.forward(x), model.manifest.head
    expected = passed.features @ model.weights[head.weight].T
    if head.bias is not None:
        expected = expected + model.weights[head.bias]
    size = max(1.0, float(np.abs(expected).max()))
    off = float(np.abs(passed.logits - expected).max()) / size
    if not off < 1e-4:
        raise EngineError(f"logits are off what the head gives by {off:.1e} of the largest")
    return f"logits are what the head makes of the features, to {off:.0e}"


def _step(model: DeviceModel, tunable: str) -> str:
    """Checks that a small step against the gradient lowers the loss by its length times the slope."""
    x, y = random_samples(model.manifest, BATCH)
    trainer = model.trainer(tunable, batch=BATCH)
    before = trainer.loss_and_grads(x, y)
    slope = float(np.square(trainer.grads.vector, dtype=np.float64).sum())
    if not (np.isfinite(before) and np.isfinite(slope) and slope > 0):
        raise EngineError(f"train.{tunable}: loss is {before}, and its gradient's square {slope}")
    expected = EXPECTED_DROP * before
    trainer.params.vector -= np.float32(expected / slope) * trainer.grads.vector
    drop = before - trainer.loss_and_grads(x, y)
    text = f"train.{tunable}: the loss fell by {drop:.2e}, the gradient says {expected:.2e}"
    if not abs(drop - expected) <= TOLERANCE * expected:
        raise EngineError(text)
    return text


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)


def _mb(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


def energy(choice: meters.FoundMeter | None = None) -> Iterator[Finding]:
    """The meter that is used (found if not given), and those that are here but cannot be read."""
    choice = choice or meters.find_meter()
    text = f"{choice.source}: {choice.description(UNKNOWN_POWER)}"
    if choice.meter is None:
        advice = "give `join` one by --meter: a smart plug, a sensor, a command"
        yield Finding("energy meter", "missing", text, advice)
    else:
        yield Finding("energy meter", "ok", text)
    for why in choice.passed:
        name, _, reason = why.partition(": ")
        yield Finding(f"energy meter {name}", "missing", reason)


def rules(folder: Path) -> Iterator[Finding]:
    """The owners' rules of the device with this folder and of those in it, and whether they allow work now.

    They are the rules of the last join. A device without rules, and not paused, is not named.
    """
    below = sorted(path.parent for path in folder.glob(f"*/{work_gate.POLICY}"))
    for place in (folder, *below):
        what = "rules" if place == folder else f"rules of {place.name}"
        try:
            policy = work_gate.kept_policy(place) or Policy()
        except PolicyError as error:
            yield Finding(what, "missing", str(error), "join again")
            continue
        verdict = work_gate.OwnerRules(policy, place, lambda: (0, 0)).verdict()
        if verdict.rules:
            text = "; ".join(verdict.reasons or [rule.why for rule in verdict.rules])
            if verdict.allows:
                yield Finding(what, "ok", f"work may be done now: {text}")
            else:
                yield Finding(what, "missing", f"no work may be done now: {text}")
