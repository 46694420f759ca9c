"""Compares local models on one probe set: linear CKA of features, and predictions by class.

CKA is that of Kornblith et al. 2019 (arXiv:1905.00414), unbiased: how alike two models' features of the same
samples are. The heat maps of predictions are those of thesis 002, figure 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.executors.job import Executor, Result, TrainingJob
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.strategies.interface.device_half import Update

SAMPLES = 256
"""Number of test samples, evenly spaced, that models are probed with."""
MODELS = 10
"""Local models that are compared in one round: 45 pairs."""


@dataclass(frozen=True)
class PredictionHeatMap:
    """The predictions of one local model for each kind: that of the first device that sent it.

    matrix[true class][predicted class] is a mean logit.
    """

    kind: str
    device: str
    matrix: NDArray[np.float64]


@dataclass(frozen=True)
class ProbeLine:
    """One probed round: `cka` is a matrix over `devices` for each level, `means` its mean over pairs."""

    round: int
    devices: tuple[str, ...]
    cka: Mapping[str, NDArray[np.float64]]
    means: Mapping[str, float]
    heat: tuple[PredictionHeatMap, ...]


@dataclass(frozen=True)
class ProbeSet:
    """The samples that models are probed with: prepared inputs (n, *input), labels int64 (n,) or None."""

    x: NDArray[Any]
    y: NDArray[np.int64] | None

    @classmethod
    def of(cls, data: DataSet, model: DeviceModel) -> ProbeSet:
        """Takes SAMPLES samples of the test part, or all if there are fewer."""
        every = np.linspace(0, len(data.test_y) - 1, min(SAMPLES, len(data.test_y))).astype(np.int64)
        y = data.test_y[every] if model.manifest.target.compared == "classes" else None
        return cls(model.manifest.input.prepare(data.test_x[every]), y)


def spread_rounds(rounds: int, count: int) -> frozenset[int]:
    """`count` rounds from the first to the last, evenly spaced."""
    numbers = np.linspace(1, rounds, min(count, rounds)).round()
    return frozenset(int(number) for number in numbers)


@dataclass
class _Gathered:
    """The data of one round: Gram matrices of features by device and level, heat maps by kind."""

    grams: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    heat: dict[str, PredictionHeatMap] = field(default_factory=dict)


class Probes:
    """An observer that compares the local models of a round whose update changes more than the head.

    A local model is the base that the device had, with the tensors that it sent; the executor wrapped by
    `over` gives the bases. Kinds that send no weights (scalars, class statistics) have no local model;
    smaller models of a family are not compared.
    """

    def __init__(
        self, model: DeviceModel, probe: ProbeSet, rounds: frozenset[int], tell: Callable[[ProbeLine], None]
    ) -> None:
        self._model, self._probe, self._rounds, self._tell = model, probe, rounds, tell
        self._levels = tuple(str(level) for level in model.manifest.features)
        head = model.manifest.head
        self._head = {head.weight, head.bias}
        self._comparable = len(probe.x) >= LEAST_SAMPLES
        self._bases: Mapping[str, Tensors] = {}
        self._round = 1
        self._gathered = _Gathered()

    def over(self, executor: Executor) -> Executor:
        """Wraps the executor, so that the probes know the bases of its jobs."""
        return _Listened(executor, self)

    def based_on(self, bases: Mapping[str, Tensors]) -> None:
        """Sets the bases of the next jobs."""
        self._bases = bases

    def asked(self, ask: AskRecord) -> None:
        """Ignored: an ask has no model."""

    def trained(self, job: TrainingJob, update: Update) -> None:
        """Probes the local model of this update, whose tensors are valid during the call only."""
        base = self._bases.get(job.base)
        if self._round not in self._rounds or base is None or job.strategy.member:
            return
        own = {name: tensor for name, tensor in update.tensors.items() if name in base}
        moved = own.keys() - self._head
        compared = self._comparable and bool(moved) and len(self._gathered.grams) < MODELS
        if not own or not (compared or update.kind not in self._gathered.heat):
            return
        self._model.load({**base, **own})
        outputs = self._model.forward(self._probe.x)
        if update.kind not in self._gathered.heat:
            y = self._probe.y
            matrix = np.empty((0, 0)) if y is None else mean_logits(outputs.logits, y)
            self._gathered.heat[update.kind] = PredictionHeatMap(update.kind, job.name, matrix)
        if compared:
            self._gathered.grams[job.name] = {
                level: gram(
                    outputs.features if level == "head" else self._model.level_features(self._probe.x, level)
                )
                for level in self._levels
            }

    def closed(self, line: SimulatedRound) -> None:
        """Compares the models that were gathered in this round, and reports them."""
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
                cka=by_level,
                means={level: mean_over_pairs(matrix) for level, matrix in by_level.items()},
                heat=tuple(heat_map for heat_map in gathered.heat.values() if heat_map.matrix.size),
            )
        )


class _Listened:
    """An executor that passes the bases of its jobs to the probes."""

    def __init__(self, executor: Executor, probes: Probes) -> None:
        self._executor, self._probes = executor, probes

    @property
    def name(self) -> str:
        return self._executor.name

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        self._probes.based_on(bases)
        return self._executor.run(bases, jobs)

    def close(self) -> None:
        self._executor.close()


Features = NDArray[np.floating[Any]]  # (n, ...): one row for each sample, in the same order in every model


LEAST_SAMPLES = 4
"""The fewest samples of which HSIC has an unbiased estimate."""


def gram(features: Features) -> NDArray[np.float64]:
    """The U-centred Gram matrix (n, n) of features: all that CKA needs of one model, whatever its width.

    Its diagonal is 0. A value elsewhere is k_ij - (k_i. + k_.j) / (n - 2) + k_.. / ((n - 1) (n - 2)), with
    sums over the Gram matrix without its diagonal. The products of two such matrices, summed and divided by
    n (n - 3), are the unbiased estimate of HSIC (Székely and Rizzo 2014, section 3). Raises SimulationError
    for fewer than 4 samples.
    """
    n = len(features)
    if n < LEAST_SAMPLES:
        raise SimulationError(f"CKA needs {LEAST_SAMPLES} samples or more, here are {n}")
    flat = features.reshape(n, -1).astype(np.float64)
    flat -= flat.mean(axis=0)  # changes nothing but the rounding
    result: NDArray[np.float64] = flat @ flat.T
    np.fill_diagonal(result, 0.0)
    sums = result.sum(axis=1)
    result -= (sums[:, None] + sums) / (n - 2) - sums.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(result, 0.0)
    return result


def pairwise_cka(grams: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Unbiased linear CKA of every two models, (models, models), 1 on the diagonal.

    0 is nothing in common, 1 equal but for rotation, scale and shift; nan for constant features. Kornblith et
    al. 2019, section 3, with the unbiased estimate of HSIC (Song et al. 2012, JMLR 13, equation 5). The usual
    estimate nears 1 for any two models with many more features than samples; this one is near 0 for unrelated
    features, and may be a little below. Thesis 002, figures 6.7 and 6.8.
    """
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan
        units = [each / np.linalg.norm(each) for each in grams]
    result = np.eye(len(units))
    for i, j in combinations(range(len(units)), 2):
        result[i, j] = result[j, i] = np.vdot(units[i], units[j])
    return result


def mean_over_pairs(similarity: NDArray[np.float64]) -> float:
    """The mean of a symmetric (models, models) matrix without its diagonal: thesis 002, figure 6.9.

    nan for fewer than two models.
    """
    above = similarity[np.triu_indices(len(similarity), 1)]
    return float(above.mean()) if above.size else float("nan")


def mean_logits(logits: NDArray[np.floating[Any]], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean logits, (classes, classes): row = true class, column = the class that the logit is for.

    nan for a class without samples. A model that is biased to its own classes shows stripes; one that is not
    shows a diagonal (thesis 002, figure 4.4).
    """
    classes = logits.shape[1]
    sums = np.zeros((classes, classes))
    np.add.at(sums, y, logits)
    samples = np.bincount(y, minlength=classes)[:, None]
    return np.divide(sums, samples, out=np.full_like(sums, np.nan), where=samples > 0)
