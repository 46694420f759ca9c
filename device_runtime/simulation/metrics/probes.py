"""Local models of chosen rounds on one probe set: CKA per level, and heat maps of their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.executors.job import Executor, Job, Result
from device_runtime.simulation.records import Ask, RoundLine
from device_runtime.strategies.training.device_half import Contribution

from .cka import gram, mean_over_pairs, pairwise_cka
from .predictions import mean_logits

SAMPLES = 256
"""Of the test part, evenly spaced, that models are probed with."""
MODELS = 10
"""Local models of one round that are compared: 45 pairs."""


class Heat(msgspec.Struct, frozen=True):
    """What the first device that sent this kind says of each class; matrix[true][said] is a mean logit."""

    kind: str
    device: str
    matrix: tuple[tuple[float | None, ...], ...]


class ProbeLine(msgspec.Struct, frozen=True):
    """One probed round: `cka` by level, a matrix over `devices`; `means` are those over pairs."""

    round: int
    devices: tuple[str, ...] = ()
    cka: dict[str, tuple[tuple[float | None, ...], ...]] = {}
    means: dict[str, float | None] = {}
    heat: tuple[Heat, ...] = ()


@dataclass(frozen=True)
class ProbeSet:
    """Prepared inputs (n, *input) and labels int64 (n,)."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    @classmethod
    def of(cls, data: DataSet, model: DeviceModel) -> ProbeSet:
        """SAMPLES of the test part, or all where there are fewer."""
        every = np.linspace(0, len(data.test_y) - 1, min(SAMPLES, len(data.test_y))).astype(np.int64)
        return cls(model.manifest.input.prepare(data.test_x[every]), data.test_y[every])


@dataclass(frozen=True)
class Rounds:
    """Which are probed, and which comes first: a run that goes on does not begin with round 1."""

    probed: frozenset[int]
    first: int = 1


def spread_rounds(rounds: int, count: int) -> frozenset[int]:
    """`count` rounds from the first to the last, evenly spaced."""
    numbers = np.linspace(1, rounds, min(count, rounds)).round()
    return frozenset(int(number) for number in numbers)


@dataclass
class _Gathered:
    """Of one round: by device, the Gram matrix of its features at each level."""

    grams: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    heat: dict[str, Heat] = field(default_factory=dict)


class Probes:
    """A watch over local models: those whose update changes more than the head are compared.

    A local model is the base that the device had, with the tensors that it sent; `over` tells of the bases.
    Kinds that send no weights (scalars, class statistics) have none; smaller models of a family are passed
    over.
    """

    def __init__(
        self, model: DeviceModel, probe: ProbeSet, rounds: Rounds, tell: Callable[[ProbeLine], None]
    ) -> None:
        self._model, self._probe, self._rounds, self._tell = model, probe, rounds.probed, tell
        self._levels = tuple(str(level) for level in model.manifest.features)
        head = model.manifest.head
        self._head = {head.weight, head.bias}
        self._bases: Mapping[str, Tensors] = {}
        self._round = rounds.first
        self._gathered = _Gathered()

    def over(self, executor: Executor) -> Executor:
        """The same executor, listened to."""
        return _Listened(executor, self)

    def based_on(self, bases: Mapping[str, Tensors]) -> None:
        """The bases of the jobs that come next."""
        self._bases = bases

    def asked(self, ask: Ask) -> None:
        """Says nothing of models."""

    def trained(self, job: Job, made: Contribution) -> None:
        """Reads the update while it is valid."""
        base = self._bases.get(job.base)
        if self._round not in self._rounds or base is None or job.strategy.member:
            return
        own = {name: tensor for name, tensor in made.tensors.items() if name in base}
        moved = own.keys() - self._head
        compared = bool(moved) and len(self._gathered.grams) < MODELS
        if not own or not (compared or made.kind not in self._gathered.heat):
            return
        self._model.load({**base, **own})
        seen = self._model.forward(self._probe.x)
        if made.kind not in self._gathered.heat:
            matrix = _rows(mean_logits(seen.logits, self._probe.y))
            self._gathered.heat[made.kind] = Heat(made.kind, job.name, matrix)
        if compared:
            self._gathered.grams[job.name] = {
                level: gram(
                    seen.features if level == "head" else self._model.level_features(self._probe.x, level)
                )
                for level in self._levels
            }

    def closed(self, line: RoundLine) -> None:
        """Compare what was gathered in this round, and tell it."""
        gathered, self._gathered, self._round = self._gathered, _Gathered(), line.round + 1
        if not gathered.heat:
            return
        devices = tuple(gathered.grams)
        by_level = {
            level: pairwise_cka([gathered.grams[device][level] for device in devices])
            for level in (self._levels if len(devices) > 1 else ())
        }
        self._tell(
            ProbeLine(
                round=line.round,
                devices=devices,
                cka={level: _rows(matrix) for level, matrix in by_level.items()},
                means={level: _number(mean_over_pairs(matrix)) for level, matrix in by_level.items()},
                heat=tuple(gathered.heat.values()),
            )
        )


class _Listened:
    """An executor that tells which bases it is given."""

    def __init__(self, executor: Executor, probes: Probes) -> None:
        self._executor, self._probes = executor, probes

    @property
    def name(self) -> str:
        return self._executor.name

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[Job]) -> Iterator[Result]:
        self._probes.based_on(bases)
        return self._executor.run(bases, jobs)

    def close(self) -> None:
        self._executor.close()


def _rows(matrix: NDArray[np.float64]) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(_number(value) for value in row) for row in matrix.tolist())


def _number(value: float) -> float | None:
    return None if value != value else round(value, 5)
