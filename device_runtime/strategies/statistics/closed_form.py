"""The closed-form head: linear discriminant analysis from pooled class statistics.

It is served in mixed rounds. n_c and s_c are the counts and sums of features by class that a round's devices
sent (`class_statistics`); A is the sum of f f^T of the devices that sent it, and n'_c, s'_c are their counts
and sums; theta_t is the base on which all of them were measured; there are d features and C classes:

    nbar    running mean of sum n'_c over the rounds;  gamma = clip(1 - nbar / (20 d), 0.7, 0.95)
    N, S    <- gamma (N, S) + (n, s);   N', S', A <- gamma (N', S', A) + (n', s', a)
    E       <- (gamma w E + w_t theta_t) / (gamma w + w_t);   w <- gamma w + w_t;   w_t = sum n_c
    mu_c    = S_c / N_c;   mu'_c = S'_c / N'_c
    Sigma0  = (A - sum_c N'_c mu'_c mu'_c^T) / (sum N' - C');   Sigma = 0.9 Sigma0 + 0.1 tr(Sigma0) / d I
    W_c     = Sigma^-1 mu_c
    b_c     = -1/2 mu_c^T Sigma^-1 mu_c + log(N_c / sum N) + tr(Sigma^-1 Sigma0) / (2 max(1, N_c))
    W, b    <- W / T, b / T;   T = max(1, mean_c m_c / log(sum N))

C' is the number of classes with N'_c > 0. If few or no second moments came, Sigma0 is that of class means,
and Sigma is shrunk more (`covariance`). A class that no device sent has W_c = 0, b_c = -30. The served model
is the extractor E with the head W, b: E is averaged with the weights of the statistics, so that old means fit
it to first order. Late statistics add the base that they were measured on to w_t theta_t. The next base keeps
its own, trained head. If the head has more features than the statistics, these are of f R
(`directions.Projection`), d is their number, and the served head is W R', b. n_c and s_c include all samples
and rounds that a device's statistics stand for (`kind_statistics.samples_per_measured`, `device_half.Late`).

m_c is the logit of c at mu_c, less the highest of the other classes there. Training shrinks Sigma on the
samples that it sees, and not on others, so that without T the head would be far too sure. N samples without
an error are evidence for odds of about N to 1 (rule of succession): T bounds the mean of the log odds at the
class means to that. It does not change which of the classes that devices sent is predicted.

Linear discriminant analysis: Hastie et al., The Elements of Statistical Learning, 4.3. Class means pooled
over devices: FedNCM (Legate et al. 2023). A classifier made on the aggregator from means and covariances:
CCVR (Luo et al. 2021). Ours: the decay, the mean of the extractor, the temperature, and the last term of b_c,
which corrects the error that a mean of few samples adds to its quadratic term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import MOST_RARE
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.directions.directions import Projection
from device_runtime.strategies.interface.device_half import NO_TENSORS, Late, Update
from device_runtime.strategies.interface.kind import ClassStatistics

from . import bounds, class_statistics, columns, held_out
from .bounds import StatisticsBounds
from .class_statistics import Statistics, StatisticsFile, StatisticsSource
from .class_sums import ClassSums, scale_in
from .covariance import MeanScatter, RoundMeans, within_classes

MEMORY = "closed-form"
"""The key of the pool in `CarriedState.memory`, whose other keys are names of kinds."""
UNSEEN = -30.0
"""The bias of a class that no device sent."""
RARE = 0.5
"""A class is rare if its pooled samples are fewer than this share of the mean over classes."""
_EXTRACTOR = "extractor/"


@dataclass(frozen=True)
class StatisticsPool:
    """The pooled statistics of all rounds so far, in float64.

    of_means: the scatter of the devices' class means, which gives Sigma0 if few second moments came.
    extractor: E, the float tensors of the base without the head.
    weight: w.
    samples: nbar, the mean over `rounds` rounds.
    usual: the usual numbers of the last rounds, which bound those to come (`bounds`).
    held_out: of the last round alone, the samples that devices held out, on how many of them the head was
    right that the round before served, 1 if that was the closed-form head, and on how many the other head was
    right; float64 (4,).
    """

    statistics: Statistics
    projection: Projection
    of_means: MeanScatter
    extractor: Tensors = field(default_factory=lambda: NO_TENSORS)
    weight: float = 0.0
    samples: float = 0.0
    rounds: int = 0
    usual: NDArray[np.float64] = field(default_factory=bounds.no_rounds)
    held_out: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))

    @classmethod
    def of(cls, memory: Tensors, labels: int, projection: Projection, targets: int = 0) -> StatisticsPool:
        """The pool that `kept` wrote; an empty one if there is none, or it has another projection.

        targets: the columns of targets, of which the statistics are beside the features.
        """
        width = projection.size + targets
        if not memory or memory["projection"].tolist() != _numbers(projection):
            return cls(Statistics.none(labels, width), projection, MeanScatter.none(width))
        sums = ClassSums(memory["sums"], memory["counts"])
        statistics = Statistics(
            sums, ClassSums(memory["moment_sums"], memory["moment_counts"]), memory["moments"]
        )
        right = memory.get("right", statistics.right)
        weight, samples, rounds = memory["scalars"].tolist()
        extractor = {n.removeprefix(_EXTRACTOR): v for n, v in memory.items() if n.startswith(_EXTRACTOR)}
        usual = memory.get("usual", bounds.no_rounds())
        statistics, of_means = replace(statistics, right=right), MeanScatter.none(width)
        if "mean_scatter" in memory:
            of_means = MeanScatter(memory["mean_scatter"], float(memory["mean_free"]))
        return cls(statistics, projection, of_means, extractor, weight, samples, int(rounds), usual)

    def kept(self) -> dict[str, NDArray[Any]]:
        """The pool as tensors, without loss, to keep until the next round; read by `of`."""
        statistics = self.statistics
        return {
            "sums": statistics.sums.sums,
            "counts": statistics.sums.counts,
            "moment_sums": statistics.moment_sums.sums,
            "moment_counts": statistics.moment_sums.counts,
            "moments": statistics.moments,
            "right": statistics.right,
            "usual": self.usual,
            "mean_scatter": self.of_means.squares,
            "mean_free": np.array(self.of_means.free, np.float64),
            "scalars": np.array([self.weight, self.samples, self.rounds], np.float64),
            "projection": np.array(_numbers(self.projection), np.int64),
            **({"held_out": self.held_out} if self.held_out[0] else {}),
            **{_EXTRACTOR + name: value for name, value in self.extractor.items()},
        }

    def after(
        self, sent: Statistics, extractor: Tensors, of_means: MeanScatter | None = None
    ) -> StatisticsPool:
        """The pool after a round; unchanged if no device sent statistics.

        `extractor` is the mean of the extractors on which the round's statistics were measured, float64;
        `of_means` the scatter of the round's class means.
        """
        fresh = float(sent.sums.counts.sum())
        if not fresh:
            return self
        rounds = self.rounds + 1
        samples = self.samples + (float(sent.moment_sums.counts.sum()) - self.samples) / rounds
        gamma = min(max(1 - samples / (20 * len(sent.moments)), 0.7), 0.95)
        old = gamma * self.weight
        mean = _mean([(old, self.extractor), (fresh, extractor)] if old else [(fresh, extractor)])
        statistics = self.statistics.decayed(gamma).add(sent)
        spread = self.of_means.decayed(gamma)
        spread = spread.add(of_means) if of_means else spread
        weight = old + fresh
        return StatisticsPool(statistics, self.projection, spread, mean, weight, samples, rounds, self.usual)

    def served(self, base: Tensors, manifest: Manifest) -> dict[str, NDArray[Any]]:
        """The model with the closed-form head: `base` with extractor E and head W, b.

        Raises ValueError if the statistics do not give a head, and says why.
        """
        extractor = {name: value.astype(np.float32) for name, value in self.extractor.items()}
        weights, bias = self._head(manifest)
        model = {**base, **extractor}
        weights = self.projection.back(weights) / scale_in(manifest, model)
        names = manifest.head
        model[names.weight] = weights.astype(np.float32)
        if names.bias is not None:
            model[names.bias] = bias.astype(np.float32)
        return model

    def _head(self, manifest: Manifest) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """W (outputs, width), b (outputs,) for the bundle's loss. Raises ValueError."""
        if not manifest.columns:
            return solve_head(self.statistics, self.of_means)
        moments = columns.JointMoments.of(self.statistics, self.of_means, manifest.columns)
        solve = columns.discriminants if manifest.target.compared == "flags" else columns.ridge
        return solve(moments, manifest.columns)


def _numbers(projection: Projection) -> list[int]:
    return [projection.width, projection.most, projection.seed] if projection.changes else [projection.width]


def _extractor(base: Tensors, manifest: Manifest) -> dict[str, NDArray[np.float64]]:
    head = (manifest.head.weight, manifest.head.bias)
    return {
        name: value.astype(np.float64)
        for name, value in base.items()
        if name not in head and value.dtype.kind == "f"
    }


def _mean(parts: Sequence[tuple[float, Tensors]]) -> dict[str, NDArray[np.float64]]:
    """The weighted mean of extractors; a single one is returned with its exact bits."""
    if len(parts) == 1:
        return dict(parts[0][1])
    total = sum(weight for weight, _ in parts)
    mean = {name: np.zeros_like(value) for name, value in parts[0][1].items()}
    for weight, extractor in parts:
        for name in mean:
            mean[name] += weight * extractor[name] / total
    return mean


def solve_head(
    statistics: Statistics, of_means: MeanScatter | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The head: W (classes, width) and b (classes,). Raises ValueError if the statistics do not give one.

    `of_means`: the scatter of the devices' class means, for few or no second moments.
    """
    covariance, shrunk = within_classes(statistics, of_means)
    counts, present = statistics.sums.counts, statistics.sums.present
    means = statistics.sums.sums[present] / counts[present, None]
    weights, bias = np.zeros(statistics.sums.sums.shape), np.full(len(counts), UNSEEN)
    weights[present] = np.linalg.solve(shrunk, means.T).T
    few = np.trace(np.linalg.solve(shrunk, covariance)) / (2 * np.maximum(1, counts[present]))
    quadratic = np.einsum("cd,cd->c", weights[present], means) / 2
    bias[present] = -quadratic + np.log(counts[present] / counts.sum()) + few
    margins = _margins(means @ weights[present].T + bias[present])
    temperature = columns.temperature_of(margins, counts.sum())
    weights[present] /= temperature
    bias[present] /= temperature
    return weights, bias


def _margins(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far the logit of each class is above all others at its mean: (classes,), or (0,) of one class."""
    own: NDArray[np.float64] = logits.diagonal()
    if len(own) < 2:
        return own[:0]
    rivals: NDArray[np.float64] = np.where(np.eye(len(own), dtype=bool), -np.inf, logits).max(axis=1)
    return own - rivals


@dataclass(frozen=True)
class HeldOutAccuracy:
    """Accuracies, 0 to 1, on `samples` samples that the last round's devices held out; nan without.

    served: of the head that the round before served, which `head` names, on the base that the last round
    distributed. For a trained head this is the served model; the model with a closed-form head has other
    features. other: of the other head, on the same base.
    """

    served: float = nan
    samples: int = 0
    head: Literal["", "closed-form", "trained"] = ""
    other: float = nan

    @classmethod
    def of(cls, memory: Tensors) -> HeldOutAccuracy:
        """What `StatisticsPool.kept` wrote; nan where nothing was held out, or the loss is not of classes."""
        if "held_out" not in memory:
            return cls()
        samples, right, in_closed_form, *other = memory["held_out"].tolist()  # older runs kept no other
        accuracy = other[0] / samples if other else nan
        return cls(right / samples, int(samples), "closed-form" if in_closed_form else "trained", accuracy)


def without_held_out(memory: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """What a round without a result takes over: counts of the round before are not its own."""
    pool = memory.get(MEMORY, NO_TENSORS)
    rest = {name: value for name, value in pool.items() if name != "held_out"}
    return {**memory, MEMORY: rest} if pool else dict(memory)


def rarest_classes(memory: Tensors) -> tuple[int, ...]:
    """Labels of the rarest classes, fewest samples first; `memory` is what `StatisticsPool.kept` wrote."""
    if not memory:
        return ()
    counts = memory["counts"]
    few = np.flatnonzero(counts < RARE * counts.mean())
    return tuple(few[np.argsort(counts[few], kind="stable")][:MOST_RARE].tolist())


class RoundStatistics:
    """Adds up a round's class statistics; add devices in a fixed order, so that sums have the same bits."""

    def __init__(self, manifest: Manifest, base: Tensors, settings: ClassStatistics, number: int = 0) -> None:
        """`base` has the weights that round `number` distributed; `settings`: how devices send statistics."""
        self._manifest, self._base, self._number = manifest, base, number
        self._projection = class_statistics.projection_of(settings, manifest)
        self._shape = class_statistics.shape_of(settings, manifest)
        self._sent = StatisticsFile(*self._shape)
        self._made_for: list[int | None] = []  # by device, the round; None: the round that is merged
        self._bases: dict[int | None, Tensors] = {}

    def keep_in(self, scratch: Path | None) -> None:
        """Use this folder for statistics that do not fit in memory; None: the system's."""
        self._sent.keep_in(scratch)

    def parted(self, update: Update) -> tuple[Update, Statistics | None]:
        """Split an update into its tensors and its class statistics; None if it has no statistics."""
        rest, statistics = class_statistics.split_statistics(update.tensors)
        if not statistics:
            return update, None
        return replace(update, tensors=rest), class_statistics.decode(statistics, self._shape)

    def add(self, sent: Statistics, late: Late | None, devices: int = 1) -> None:
        """Add the statistics of a device, or of a sum of `devices`. Raises OSError.

        Late ones were measured on the base of their own round.
        """
        number, base = (late.round, late.base() or self._base) if late else (None, self._base)
        samples = float(sent.sums.counts.sum())
        if not samples:
            return
        if self._manifest.scale is not None:
            sent = sent.times(1 / class_statistics.scale_of(self._manifest, base))
        size = samples / devices / (late.times if late else 1.0)
        rounds_late = max(1, self._number - late.round) if late else 0
        self._sent.add(sent, StatisticsSource(size, rounds_late, sent.stands_for))
        self._bases[number] = base
        self._made_for.append(number)

    def closed(self, memory: Tensors) -> tuple[StatisticsPool, Tensors, str]:
        """The pool after this round, the model to serve, and a note; `memory` is as kept.

        The note says what was bounded, and why there is no model to serve. Raises OSError.
        """
        manifest = self._manifest
        pool = StatisticsPool.of(memory, self._shape[0], self._projection, manifest.columns)
        note = ""
        if len(self._sent):
            pool, note = self._pooled(pool)
        try:
            return pool, pool.served(self._base, manifest), note
        except (ValueError, np.linalg.LinAlgError) as error:
            why = f"the trained head is served: {error}"
            return pool, NO_TENSORS, f"{note}; {why}" if note else why

    def _pooled(self, pool: StatisticsPool) -> tuple[StatisticsPool, str]:
        """The pool after this round, with what each device may add to it, and a note of what was bounded."""
        limits = StatisticsBounds(self._sent, pool.statistics, pool.usual, self._manifest.columns > 0)
        total, weights = Statistics.none(*self._shape), dict[int | None, float]()
        of_means, sources = RoundMeans(*self._shape), self._sent.sources
        for number, source, sent in zip(self._made_for, sources, limits.bounded(), strict=True):
            total = total.add(sent)
            of_means.add(sent.sums.weighted(1 / source.stands_for))
            weights[number] = weights.get(number, 0.0) + float(sent.sums.counts.sum())
        parts = [
            (weight, _extractor(self._bases[number], self._manifest))
            for number, weight in weights.items()
            if weight
        ]
        after = pool.after(total, _mean(parts), of_means.scatter()) if parts else pool
        counts = np.zeros(4)
        if not self._manifest.columns:  # of columns, devices count which of two models is the nearer one
            samples, closed, trained = total.right.tolist()
            by_trained = bool(held_out.trained_is_better(pool.statistics.right))
            served, other = (trained, closed) if by_trained else (closed, trained)
            counts = np.array([samples, served, not by_trained, other], np.float64)
        return replace(after, usual=limits.rounds, held_out=counts), limits.note
