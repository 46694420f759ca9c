"""Checkpoints of a simulated run, from which it resumes after it was stopped.

A checkpoint holds only what was learnt. What devices do never depends on the weights, so a resumed run
replays its finished rounds without training, in milliseconds a round, and then trains from where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.broker.wire.messages import Shortages
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ModelError
from device_runtime.simulation.errors import SimulationError
from device_runtime.strategies.interface.aggregator_half import NO_FAMILY
from device_runtime.strategies.interface.device_half import NO_TENSORS

from .bases import BaseVersion, RoundBase

FILE = "checkpoint.safetensors"
CONTENTS = "contents"


@dataclass(frozen=True)
class StrategyStates:
    """The states that kinds of update keep: on the aggregator by kind, on devices by number and kind."""

    aggregator: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    devices: Mapping[tuple[int, str], Tensors] = field(default_factory=dict)


class RunMark(msgspec.Struct, frozen=True, array_like=True):
    """The run that a checkpoint belongs to: its lineage, real seconds so far, and bytes of its files."""

    line: str
    seconds: float
    sizes: dict[str, int]


@dataclass(frozen=True)
class Checkpoint:
    """The state after round `round`: the bases still in use, the newest included, and the served model.

    `history` has what each round distributed, from the first to the newest base. `scores` has the score of
    each round's model (see `events.PhaseDone`). `best` is the best model served, where the run is to end
    with it. `mark`: the run to which it belongs, where one keeps it in its folder.
    """

    round: int
    bases: tuple[RoundBase, ...]
    history: tuple[BaseVersion, ...]
    served: Tensors
    states: StrategyStates = field(default_factory=StrategyStates)
    scores: tuple[float, ...] = ()
    best: Tensors = field(default_factory=lambda: NO_TENSORS)
    mark: RunMark | None = None


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """The owner of the tensors under one number: a kind of owner, a round or device, and a name."""

    what: Literal["served", "base", "member", "aside", "aggregator", "device", "best"]
    number: int = 0
    name: str = ""
    rare: tuple[int, ...] = ()
    shortages: Shortages | None = None


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    """The table of contents of a checkpoint's file."""

    history: tuple[BaseVersion, ...]
    places: tuple[_Place, ...]
    scores: tuple[float, ...] = ()
    mark: RunMark | None = None


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the checkpoint durably, in place of an earlier one. Raises SimulationError if that fails."""
    owners = dict(_owners(checkpoint))
    contents = _Contents(checkpoint.history, tuple(owners), checkpoint.scores, checkpoint.mark)
    content = {CONTENTS: np.frombuffer(msgspec.msgpack.encode(contents), np.uint8)}
    for number, tensors_of in enumerate(owners.values()):
        content |= {f"{number}/{name}": value for name, value in tensors_of.items()}
    try:
        replace_file(folder / FILE, tensors.encode(content))
    except OSError as error:
        raise SimulationError(f"cannot write {folder / FILE}: {error.strerror or error}") from None


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint saved last, or None. Raises SimulationError for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return _read(tensors.decode(path.read_bytes()))
    except (ModelError, msgspec.MsgspecError, LookupError, TypeError, ValueError, OSError) as error:
        raise SimulationError(f"{path} is not a checkpoint ({error}): remove it to begin again") from None


def _owners(checkpoint: Checkpoint) -> Iterator[tuple[_Place, Tensors]]:
    yield _Place("served"), checkpoint.served
    if checkpoint.best:
        yield _Place("best"), checkpoint.best
    for base in checkpoint.bases:
        yield _Place("base", base.number, rare=base.rare, shortages=base.shortages), base.weights
        for member, weights in base.family.items():
            yield _Place("member", base.number, member), weights
        yield _Place("aside", base.number), base.aside
    for kind, memory in checkpoint.states.aggregator.items():
        yield _Place("aggregator", 0, kind), memory
    for (device, kind), memory in checkpoint.states.devices.items():
        yield _Place("device", device, kind), memory


def _read(content: Tensors) -> Checkpoint:
    contents = msgspec.msgpack.decode(content[CONTENTS].tobytes(), type=_Contents)
    parts: list[dict[str, NDArray[Any]]] = [{} for _ in contents.places]
    for key, value in content.items():
        number, _, name = key.partition("/")
        if name:
            parts[int(number)][name] = value
    of: dict[str, dict[tuple[int, str], Tensors]] = {}
    bases = {place.number: place for place in contents.places if place.what == "base"}
    for place, part in zip(contents.places, parts, strict=True):
        of.setdefault(place.what, {})[place.number, place.name] = part
    return Checkpoint(
        len(contents.history) - 1,
        tuple(
            replace(_base(number, weights, of), rare=bases[number].rare, shortages=bases[number].shortages)
            for (number, _), weights in sorted(of["base"].items())
        ),
        contents.history,
        of["served"][0, ""],
        StrategyStates(
            {kind: memory for (_, kind), memory in of.get("aggregator", {}).items()}, of.get("device", {})
        ),
        contents.scores,
        of.get("best", {}).get((0, ""), NO_TENSORS),
        contents.mark,
    )


def _base(number: int, weights: Tensors, of: Mapping[str, Mapping[tuple[int, str], Tensors]]) -> RoundBase:
    family = {name: part for (round_, name), part in of.get("member", {}).items() if round_ == number}
    return RoundBase(number, weights, family, of["aside"][number, ""])
