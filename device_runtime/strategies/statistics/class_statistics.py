"""Class statistics of features, sent beside an update: counts, means, second moments.

The method is in docs/closed-form-head.md. Before local training, a device computes the features f that the
base's head takes, or fewer random sums of them if there are many (`class_sums.Projection`). For each class it
sends the count n_c and the mean of f; time permitting, it also sends one mean of f f^T for all classes. The
sums that these stand for add up over devices to those of all samples, however these are divided (FedNCM:
Legate et al. 2023; with second moments
Fed3R: Fani et al. 2024).

A site sends the sums of its devices in the same way; if not all of them sent second moments, it also
sends the counts and means of those that did.

Held-out samples are not included; the counts of how many each head classifies right are sent beside the
statistics (`held_out`).

A device may send statistics of only some of its classes (`most_classes`). These include no samples of other
classes, and no second moments: the difference of two rounds' moments would be those of a few samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Workload, predict
from device_runtime.profiles.cost import GraphPass
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.entropy_subset import EntropySubset
from device_runtime.strategies.few_shot import FewShot
from device_runtime.strategies.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.terms.dp_sgd import dp_settings
from device_runtime.strategies.training.device_half import LocalData, Run, TrainedUpdate
from device_runtime.strategies.training.workload import forward_work, passes

from . import class_sums, held_out
from .class_sums import ClassSums

PREFIX = "class-statistics/"
ROWS, MOMENTS, SPREAD = PREFIX + "rows", PREFIX + "moments", PREFIX + "spread"
"""Tensors on the wire: counts and means (`class_sums.write_rows`), the mean of f f^T, its largest number."""
MOMENT_ROWS = PREFIX + "moment-rows"
"""As ROWS, of the samples whose second moments are sent, if these are not all samples."""
RIGHT = PREFIX + "right"
"""The counts of held-out samples, int32 (1, `held_out.COUNTS`); no row if no head was compared."""
MOST_LABELS = 1 << 16
"""The most labels that the numbers in rows can tell apart."""
LEAST_FREE = 2
"""The least number of samples minus classes for which second moments are sent.

With one fewer, moments and means together would reveal the features of two samples.
"""
MOST_MOMENT = class_sums.MOST_NORM**2
"""The largest second moment that the aggregator accepts."""
TENSOR_BYTES = 72
"""Usual bytes of a tensor on the wire beside its values."""
OTHERS = 4
"""A device with more rare classes than it may send sends its other classes in one of OTHERS rounds."""

Shape = tuple[int, int]
"""(classes, width) of class sums."""


@dataclass(frozen=True)
class Statistics:
    """Sums of class statistics over samples, devices or rounds.

    sums: of all devices. moments: the sum of f f^T, float64 (width, width), of devices that sent second
    moments.
    moment_sums: as `sums`, of those devices. right: counts of held-out samples, float64 (`held_out.COUNTS`,).
    Counts of samples are float64 if they decay.
    """

    sums: ClassSums
    moment_sums: ClassSums
    moments: NDArray[np.float64]
    right: NDArray[np.float64] = field(default_factory=held_out.none)

    @classmethod
    def none(cls, labels: int, width: int) -> Statistics:
        nothing = ClassSums(np.zeros((labels, width)), np.zeros(labels, np.int64))
        return cls(nothing, nothing, np.zeros((width, width)))

    def add(self, other: Statistics) -> Statistics:
        return Statistics(
            self.sums + other.sums,
            self.moment_sums + other.moment_sums,
            self.moments + other.moments,
            self.right + other.right,
        )

    def times(self, scale: NDArray[Any]) -> Statistics:
        """The statistics of features multiplied by `scale`, float64 (width,)."""
        moments = self.moments * np.outer(scale, scale)
        return Statistics(self.sums.times(scale), self.moment_sums.times(scale), moments, self.right)

    def standing_for(self, times: float) -> Statistics:
        """The same means, with counts multiplied by `times`; second moments and `right` stay."""
        return replace(self, sums=self.sums.weighted(times))

    def decayed(self, gamma: float) -> Statistics:
        sums, moment_sums = (one.weighted(gamma) for one in (self.sums, self.moment_sums))
        return Statistics(sums, moment_sums, gamma * self.moments, gamma * self.right)


@dataclass(frozen=True)
class Measured:
    """Features float32 (n, width) by the base, labels y int64 (n,), and the number of classes.

    right: counts of held-out samples, float64 (`held_out.COUNTS`,).
    """

    features: NDArray[np.float32]
    y: NDArray[np.int64]
    labels: int
    right: NDArray[np.float64] = field(default_factory=held_out.none)


def infeasible_reason(manifest: Manifest, statistics: ClassStatistics) -> str:
    """Why these statistics give no closed-form head for a bundle; empty if they do."""
    head = manifest.head
    if head.bias is None:
        return "its head has no bias"
    shape = manifest.features.get("head", (head.features,))
    if shape != (head.features,):
        return f"its head takes features of shape {shape}, expected one vector for each sample"
    if len(manifest.labels) > MOST_LABELS:
        return f"it tells {len(manifest.labels)} classes apart, at most {MOST_LABELS} can be numbered"
    if manifest.scale is not None and statistics.projection(head.features).changes:
        return f"its {head.features} features have a scale, with which at most {statistics.features} can be"
    return ""


def serves_closed_form(kinds: Sequence[AnyStrategy]) -> bool:
    """Whether a task that offers these kinds serves a closed-form head by default.

    It does if there are several, and one that trains the extractor can come with class statistics.
    """
    return len(kinds) > 1 and any(kind.trains_extractor and _can_send(kind) for kind in kinds)


def _can_send(kind: AnyStrategy) -> bool:
    """Whether a kind can send class statistics.

    It cannot under differential privacy, nor from a smaller model, which has other features.
    """
    return not kind.member and dp_settings(kind) is None


def statistics_of(strategy: AnyStrategy) -> ClassStatistics | None:
    """The settings of the class statistics that an update of this form has; None if it has none.

    An update of class means consists of them. There, and beside scalars, means are sent as int8.
    """
    statistics = strategy.statistics
    if statistics is None or not _can_send(strategy):
        return None
    if isinstance(strategy, ClassMeans):
        least = max(strategy.smallest_count, statistics.smallest_count)
        return replace(statistics, numbers="int8", smallest_count=least)
    return replace(statistics, numbers="int8") if strategy.scalars else statistics


def without_moments(strategy: AnyStrategy) -> AnyStrategy | None:
    """The same kind without second moments in its class statistics; None if it has no second moments."""
    statistics = strategy.statistics
    if statistics is None or not statistics.moments:
        return None
    return with_class_statistics(strategy, replace(statistics, moments=False))


def with_most_classes(strategy: AnyStrategy, most: int) -> AnyStrategy:
    """The same kind with statistics of at most `most` classes. Raises ValueError if it has no statistics."""
    if strategy.statistics is None:
        raise ValueError(f"{strategy.name} comes without class statistics")
    return with_class_statistics(strategy, replace(strategy.statistics, most_classes=most))


def class_coverage(strategy: AnyStrategy, workload: Workload) -> tuple[int, int]:
    """How many classes an update sends statistics of, and how many it could."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return 0, 0
    present = sum(count >= statistics.smallest_count for count in workload.class_counts)
    return min(present, statistics.most_classes or present), present


def without_class_statistics(strategy: AnyStrategy) -> AnyStrategy:
    """The same kind without class statistics; class means consist of them, and keep them."""
    return strategy if isinstance(strategy, ClassMeans) else with_class_statistics(strategy, None)


def with_class_statistics(strategy: AnyStrategy, statistics: ClassStatistics | None) -> AnyStrategy:
    """The same kind with these settings of class statistics."""
    return cast(AnyStrategy, replace(cast(Any, strategy), statistics=statistics))


def cost(strategy: AnyStrategy, workload: Workload, profile: DeviceProfile) -> Cost:
    """The predicted cost of an update with its class statistics. Raises MissingGraph.

    They take one more forward pass before training, whose features are kept; few-shot training computes these
    anyway. Held-out samples take one forward pass.
    """
    statistics = statistics_of(strategy)
    if statistics is None or not workload.samples:
        return strategy.cost(workload, profile)
    whole, workload = workload, held_out.rest(workload, statistics.hold_out)
    own, held = strategy.cost(workload, profile), whole.samples - workload.samples
    samples, wide = _measured(strategy, workload.samples), workload.feature_width
    width = statistics.projection(wide).size
    present, _ = class_coverage(strategy, workload)
    work = forward_work(replace(workload, class_counts=(samples,)), samples, 0)
    size = present * class_sums.row_bytes(width, statistics.numbers) + TENSOR_BYTES
    forward = held + (0 if isinstance(strategy, FewShot) else samples)
    run, peak = passes(workload, forward=forward) if forward else (), work.peak_bytes
    if statistics.moments:
        size += width * (width + 1) + 4 + 2 * TENSOR_BYTES
        run, peak = (*run, GraphPass("moments", samples, 2.0 * width**2)), peak + 16 * width**2
    kept = 4 * samples * wide
    if statistics.hold_out:
        size += 12 + TENSOR_BYTES
        kept += whole.samples * whole.sample_bytes
    work = replace(work, passes=run, peak_bytes=peak, bytes_up=size, bytes_down=0)
    more = predict(profile, work, strategy.name)
    return Cost(
        seconds=own.seconds + more.seconds,
        compute_s=own.compute_s + more.compute_s,
        peak_memory_bytes=max(own.peak_memory_bytes + kept, more.peak_memory_bytes),
        bytes_up=own.bytes_up + more.bytes_up,
        bytes_down=own.bytes_down,
        energy_j=own.energy_j + more.energy_j,
        flops=own.flops + more.flops,
    )


def _measured(strategy: AnyStrategy, samples: int) -> int:
    """Of how many samples a device with `samples` samples computes features."""
    statistics = strategy.statistics
    all_of_them = strategy.trains_extractor or isinstance(strategy, FewShot)
    if all_of_them or statistics is None or not statistics.samples:
        return samples
    return min(samples, statistics.samples)


def most_samples(strategy: AnyStrategy, num_examples: int) -> int:
    """The most samples that a device can have if its update of this form counts `num_examples`."""
    share = strategy.share if isinstance(strategy, EntropySubset) else 1.0
    return floor(num_examples / share + 1e-6)


def per_measured(strategy: AnyStrategy, num_examples: int, counted: float) -> float:
    """How many samples one measured sample counts for, on a device with `num_examples` samples.

    A kind that trains no extractor measures only some of the samples: without this factor, classes on such
    devices would seem rare. `counted`: samples in the statistics; fewer than were measured if not all classes
    are sent, which does not change the factor for those that are. A site has already applied the factor
    (`of_site`).
    """
    if statistics_of(strategy) is None or strategy.trains_extractor:
        return 1.0
    return max(1.0, num_examples / max(1, _measured(strategy, num_examples), counted))


def is_from_site(sent: Tensors) -> bool:
    """Whether an update is from a site, by the rows that say whose second moments it has."""
    return MOMENT_ROWS in sent


class _CachedFeatures:
    """A model whose features of the inputs x are already known."""

    def __init__(self, model: DeviceModel, x: NDArray[Any], features: NDArray[np.float32]) -> None:
        self._model, self._x, self._known = model, x, features

    def features(self, x: NDArray[Any]) -> NDArray[np.float32]:
        return self._known if x is self._x else self._model.features(x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def train(strategy: AnyStrategy, model: DeviceModel, data: LocalData, run: Run) -> TrainedUpdate:
    """On the device: the update together with its class statistics, both without held-out samples.

    Statistics are of samples drawn evenly. `model` holds the base. Raises as `Strategy.train`.
    """
    statistics = statistics_of(strategy)
    if statistics is None:
        return strategy.train(model, data, run)
    right = held_out.none()
    if statistics.hold_out:
        held, data = held_out.split_held_out(data, statistics.hold_out, run.device)
        right = held_out.count_right(model, held, run.aside)
    rows = measured(strategy, len(data), run)
    x, y = (data.x, data.y) if rows is None else (data.x[rows], data.y[rows])
    known = Measured(model.features(x), y, len(model.manifest.labels), right)
    if isinstance(strategy, FewShot):
        model = cast(DeviceModel, _CachedFeatures(model, x, known.features))
    return add_statistics(strategy, strategy.train(model, data, run), known, run)


def measured(strategy: AnyStrategy, samples: int, run: Run) -> NDArray[np.int64] | None:
    """Indices of the samples whose features a device computes, drawn evenly; None: all `samples`."""
    return run.drawn(_measured(strategy, samples), samples)


def chosen_classes(present: Sequence[int], most: int, run: Run) -> Sequence[int]:
    """The classes among `present` that an update sends statistics of: at most `most`, 0 for all.

    Rare classes come first, the rarest before others. Other classes take turns by the number of the round, as
    many as there is room for.
    """
    if not most or len(present) <= most:
        return present
    first = [label for label in run.rare if label in present][:most]
    others = [label for label in present if label not in first]
    room, turn = most - len(first), run.round
    if not room and turn % OTHERS == 0:
        room, turn = min(most, len(others)), turn // OTHERS
        first = first[: most - room]
    start = room * turn % len(others)
    return first + (2 * others)[start : start + room]


def _of_chosen(known: Measured, statistics: ClassStatistics, run: Run) -> Measured:
    """The measured samples of those classes that are sent."""
    counts = np.bincount(known.y, minlength=known.labels)
    present = np.flatnonzero(counts >= statistics.smallest_count).tolist()
    sent = chosen_classes(present, statistics.most_classes, run)
    if len(sent) == len(present):
        return known
    rows = np.isin(known.y, sent)
    return replace(known, features=known.features[rows], y=known.y[rows])


def add_statistics(strategy: AnyStrategy, made: TrainedUpdate, known: Measured, run: Run) -> TrainedUpdate:
    """The update with the class statistics of measured samples added, if it sends any."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return made
    part = _of_chosen(known, statistics, run)
    features = statistics.projection(part.features.shape[1]).project(part.features)
    found = measure_statistics(features, part.y, part.labels, statistics.smallest_count)
    if part is not known:
        found = replace(found, moment_sums=ClassSums(0 * found.sums.sums, 0 * found.sums.counts))
    sent = encode(replace(found, right=known.right), statistics)
    return replace(made, tensors={**made.tensors, **sent})


def measure_statistics(
    features: NDArray[np.float32], y: NDArray[np.int64], labels: int, smallest: int
) -> Statistics:
    """The statistics of features (n, width) and labels y (n,), for classes of `smallest` samples or more."""
    sums = class_sums.sum_by_class(features, y, labels).at_least(smallest)
    counted = features[sums.counts[y] > 0].astype(np.float64)
    return Statistics(sums, sums, counted.T @ counted)


def encode(statistics: Statistics, asked: ClassStatistics) -> dict[str, NDArray[Any]]:
    """The tensors for the wire.

    ROWS: a row for each class with samples. If moments are asked for, MOMENTS: the upper triangle of the mean
    of f f^T relative to its largest number, float16 (1, width (width + 1) / 2), and SPREAD: that number;
    without a row if there are none, or too few samples (`LEAST_FREE`). RIGHT, if samples are held out.
    """
    known, numbers = statistics.moment_sums, asked.numbers
    sent: dict[str, NDArray[Any]] = {ROWS: class_sums.write_rows(statistics.sums, numbers)}
    if asked.hold_out:
        sent[RIGHT] = statistics.right[None, :].astype(np.int32)[: int(statistics.right[0] >= 1)]
    if asked.moments:
        upper = statistics.moments[np.triu_indices(len(statistics.moments))][None]
        count = int(known.counts.sum())
        count = count if count - len(known.present) >= LEAST_FREE else 0
        sent[MOMENTS], sent[SPREAD] = class_sums.quantise_rows(
            upper / count if count else upper[:0], "float16"
        )
        if count and not np.array_equal(known.counts, statistics.sums.counts):
            sent[MOMENT_ROWS] = class_sums.write_rows(known, numbers)
    return sent


def shape_of(statistics: ClassStatistics, manifest: Manifest) -> Shape:
    """The shape (classes, width) of the sums that a device's class statistics stand for."""
    return len(manifest.labels), statistics.projection(manifest.head.features).size


def decode(sent: Tensors, shape: Shape) -> Statistics:
    """The statistics that tensors of the wire stand for; the tensors must have passed `doubt`."""
    known, nothing = class_sums.read_rows(sent[ROWS], *shape), Statistics.none(*shape)
    right = sent[RIGHT].sum(axis=0, dtype=np.float64) if RIGHT in sent else nothing.right
    if MOMENTS not in sent or not len(sent[MOMENTS]):
        return Statistics(known, nothing.moment_sums, nothing.moments, right)
    of_moments = class_sums.read_rows(sent[MOMENT_ROWS], *shape) if MOMENT_ROWS in sent else known
    moments = nothing.moments
    moments[np.triu_indices(shape[1])] = (
        class_sums.restore_rows(sent[MOMENTS], sent[SPREAD])[0] * of_moments.counts.sum()
    )
    return Statistics(known, of_moments, np.triu(moments) + np.triu(moments, 1).T, right)


def expected(strategy: AnyStrategy, manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The tensors of an update of this form, including its class statistics if it has any."""
    return (*strategy.expected(manifest), *specs(strategy, manifest))


def specs(strategy: AnyStrategy, manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The tensors of the class statistics of an update of this form."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return ()
    labels, width = shape_of(statistics, manifest)
    parts = [class_sums.spec_of_rows(ROWS, labels, width, statistics.numbers)]
    if statistics.hold_out:
        parts.append(TensorSpec(RIGHT, (1, held_out.COUNTS), "int32", variable=True))
    if statistics.moments:
        parts.append(TensorSpec(MOMENTS, (1, width * (width + 1) // 2), "float16", variable=True))
        parts.append(TensorSpec(SPREAD, (1,), variable=True))
    return tuple(parts)


def accepted(strategy: AnyStrategy, manifest: Manifest) -> tuple[TensorSpec, ...]:
    """All tensors that an update of this form may have; MOMENT_ROWS is only in updates of sites."""
    statistics, whole = statistics_of(strategy), expected(strategy, manifest)
    if statistics is None or not statistics.moments:
        return whole
    return (*whole, class_sums.spec_of_rows(MOMENT_ROWS, *shape_of(statistics, manifest), statistics.numbers))


def expected_of(sent: Tensors, accepted: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """Those of the accepted tensors that this update must have.

    Class statistics may be missing, or have no second moments or no RIGHT. Second moments of a site may have
    rows of their own.
    """
    without = set() if ROWS in sent else {ROWS, MOMENTS, SPREAD, MOMENT_ROWS, RIGHT}
    without |= set() if RIGHT in sent else {RIGHT}
    without |= set() if MOMENTS in sent else {MOMENTS, SPREAD, MOMENT_ROWS}
    without |= set() if MOMENT_ROWS in sent else {MOMENT_ROWS}
    return [spec for spec in accepted if spec.name not in without]


def split_statistics(sent: Tensors) -> tuple[Tensors, Tensors]:
    """The update without its class statistics, and the class statistics; empty if it has none."""
    if ROWS not in sent:
        return sent, {}
    found = {name: value for name, value in sent.items() if name.startswith(PREFIX)}
    return {name: value for name, value in sent.items() if name not in found}, found


def doubt_of(strategy: AnyStrategy, sent: Tensors, num_examples: int, manifest: Manifest) -> str:
    """Why the class statistics of an update of this form are rejected; see `doubt`."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return ""
    if not sent and isinstance(strategy, ClassMeans):
        return "class means came without class statistics"
    shape, samples = shape_of(statistics, manifest), most_samples(strategy, num_examples)
    right = held_out.doubt(sent[RIGHT], statistics.hold_out, samples) if RIGHT in sent else ""
    return right or doubt(sent, samples, statistics.smallest_count, shape)


def doubt(sent: Tensors, samples: float, smallest: int, shape: Shape) -> str:
    """Why class statistics of the right shapes and dtypes are rejected, with values.

    Empty if they are accepted, or there are none. `samples`: the most that the device can have. Allows for
    the rounding of means and moments.
    """
    if not sent:
        return ""
    if why := class_sums.doubt_rows(sent[ROWS], *shape, smallest):
        return why
    counts = class_sums.read_rows(sent[ROWS], *shape).counts
    if counts.sum() > samples:
        return f"class counts sum to {counts.sum()}, the device has at most {samples:g} samples"
    if MOMENTS not in sent:
        return ""
    if MOMENT_ROWS not in sent:
        return _doubt_moments(sent, sent[ROWS], shape)
    if why := class_sums.doubt_rows(sent[MOMENT_ROWS], *shape, smallest):
        return why
    if len(more := np.flatnonzero(class_sums.read_rows(sent[MOMENT_ROWS], *shape).counts > counts)):
        return f"class {more[0]} has second moments of more samples than are counted"
    return _doubt_moments(sent, sent[MOMENT_ROWS], shape)


def _doubt_moments(sent: Tensors, rows: NDArray[np.uint8], shape: Shape) -> str:
    """Why second moments are rejected; empty if they are accepted.

    By Cauchy-Schwarz, the mean of f_i^2 is at least the weighted mean of squared class means in `rows`, and
    |mean of f_i f_j| is at most the root of the product of the means of f_i^2 and f_j^2.
    """
    if len(sent[MOMENTS]) != len(sent[SPREAD]) or len(sent[MOMENTS]) > len(rows):
        return f"second moments in {len(sent[MOMENTS])} rows, of {len(rows)} classes"
    if not len(sent[MOMENTS]):
        return ""
    if (np.abs(sent[MOMENTS]) > 1).any() or not 0 <= sent[SPREAD][0] <= MOST_MOMENT:
        largest = float(np.abs(sent[MOMENTS]).max()) * float(sent[SPREAD][0])
        return f"the largest second moment is {largest:.4g}, at most {MOST_MOMENT:g} is believed"
    known = decode(sent, shape)
    sums, moments = known.moment_sums, known.moments / known.moment_sums.counts.sum()
    means = sums.sums[sums.present] / sums.counts[sums.present, None]
    weights, largest = sums.counts[sums.present] / sums.counts.sum(), np.abs(means).max(axis=1, keepdims=True)
    square = moments.diagonal()
    slack = 4 * class_sums.ROUNDING_ERROR[2] * float(np.abs(moments).max())
    off = 2 * class_sums.step_of(rows, shape[1]) * np.abs(means) * largest + 1e-12
    least = weights @ means**2 - weights @ off
    if len(low := np.flatnonzero(square + slack < least)):
        i = int(low[0])
        return f"the mean square of feature {i} is {square[i]:.4g}, its class means alone make {least[i]:.4g}"
    most = np.sqrt(np.outer(square.clip(0), square.clip(0))) + slack
    if len(high := np.argwhere(np.abs(moments) > most)):
        i, j = high[0]
        return (
            f"the moment of features {i} and {j} is {moments[i, j]:.4g}, at most {most[i, j]:.4g} is possible"
        )
    return ""
