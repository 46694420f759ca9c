"""Which class statistics each kind of update sends, what they cost, and how a device measures them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.stacked import with_others
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Workload, predict
from device_runtime.profiles.cost import GraphPass
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.terms.dp_sgd import dp_settings
from device_runtime.strategies.training.workload import forward_work, passes

from . import class_statistics, class_sums, held_out
from .class_statistics import (
    MOMENT_ROWS,
    MOMENTS,
    OTHERS,
    RIGHT,
    ROWS,
    SPREAD,
    TENSOR_BYTES,
    encode,
    measure_statistics,
    shape_of,
)
from .class_sums import ClassSums


@dataclass(frozen=True)
class Measured:
    """What a device computes its class statistics from.

    features: by the base, float32 (n, width).
    y: the class of each sample, int64 (n,), or its stratum if the loss is not of classes.
    labels: the number of classes, or of strata.
    targets: in columns, float32 (n, columns); without columns where the loss is of classes.
    right: counts of held-out samples, float64 (`held_out.COUNTS`,).
    """

    features: NDArray[np.float32]
    y: NDArray[np.int64]
    labels: int
    targets: NDArray[np.float32]
    right: NDArray[np.float64] = field(default_factory=held_out.none)

    @classmethod
    def of(cls, manifest: Manifest, features: NDArray[np.float32], samples: LocalData) -> Measured:
        """The features of samples with their strata and targets."""
        values = manifest.target.compared_values(samples.x, samples.y)
        return cls(features, manifest.target.strata(values, samples.y), manifest.strata, values)


def serves_closed_form(kinds: Sequence[AnyStrategy]) -> bool:
    """Whether a task that offers these kinds serves a closed-form head by default.

    It does if there are several, and one that trains the extractor can come with class statistics.
    """
    return len(kinds) > 1 and any(kind.traits.trains_extractor and _can_send(kind) for kind in kinds)


def _can_send(kind: AnyStrategy) -> bool:
    """Whether a kind can send class statistics.

    It cannot under differential privacy, nor from a smaller model, which has other features.
    """
    return not kind.member and dp_settings(kind) is None


def statistics_of(strategy: AnyStrategy) -> ClassStatistics | None:
    """The settings of the class statistics that an update of this form has; None if it has none.

    An update of class means consists of them. There, and with scalars, means are sent as int8.
    """
    statistics = strategy.statistics
    if statistics is None or not _can_send(strategy):
        return None
    if strategy.traits.statistics_alone:
        least = max(capabilities.smallest_class(strategy) or 1, statistics.smallest_count)
        return replace(statistics, numbers="int8", smallest_count=least)
    return replace(statistics, numbers="int8") if capabilities.scalars(strategy) else statistics


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
    """The number of classes of which an update sends statistics, and of which it could."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return 0, 0
    present = sum(count >= statistics.smallest_count for count in workload.class_counts)
    if workload.strata:  # which of these a device has is known when it measures
        present = min(workload.strata, workload.samples // statistics.smallest_count)
    return min(present, statistics.most_classes or present), present


def without_class_statistics(strategy: AnyStrategy) -> AnyStrategy:
    """The same kind without class statistics; class means consist of them, and keep them."""
    return strategy if strategy.traits.statistics_alone else with_class_statistics(strategy, None)


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
    whole, workload = workload, held_out.rest(workload, statistics.hold_out or 0.0)
    own, held_samples = strategy.cost(workload, profile), whole.samples - workload.samples
    samples, wide = _measured(strategy, workload.samples), workload.feature_width
    width = statistics.projection(wide, workload.columns).size + workload.columns
    present, _ = class_coverage(strategy, workload)
    work = forward_work(replace(workload, class_counts=(samples,)), samples, 0)
    size = present * class_sums.row_bytes(width, statistics.numbers) + TENSOR_BYTES
    forward = held_samples + (0 if strategy.traits.computes_features else samples)
    run, peak = passes(workload, forward=forward) if forward else (), work.peak_bytes
    if statistics.moments:
        size += width * (width + 1) + 4 + 2 * TENSOR_BYTES
        run, peak = (*run, GraphPass("moments", samples, 2.0 * width**2)), peak + 16 * width**2
    memory_bytes = 4 * samples * wide
    if statistics.hold_out:
        size += 12 + TENSOR_BYTES
        memory_bytes += whole.samples * whole.sample_bytes
    work = replace(work, passes=run, peak_bytes=peak, bytes_up=size, bytes_down=0)
    more = predict(profile, work, strategy.name)
    return Cost(
        seconds=own.seconds + more.seconds,
        compute_s=own.compute_s + more.compute_s,
        peak_memory_bytes=max(own.peak_memory_bytes + memory_bytes, more.peak_memory_bytes),
        bytes_up=own.bytes_up + more.bytes_up,
        bytes_down=own.bytes_down,
        energy_j=own.energy_j + more.energy_j,
        flops=own.flops + more.flops,
    )


def _measured(strategy: AnyStrategy, samples: int) -> int:
    """The number of samples whose features a device with `samples` samples computes."""
    statistics = strategy.statistics
    all_of_them = strategy.traits.trains_extractor or strategy.traits.computes_features
    if all_of_them or statistics is None or not statistics.samples:
        return samples
    return min(samples, statistics.samples)


def most_samples(strategy: AnyStrategy, num_examples: int) -> int:
    """The most samples that a device can have if its update of this form counts `num_examples`."""
    return floor(num_examples / capabilities.selected_share(strategy) + 1e-6)


def samples_per_measured(strategy: AnyStrategy, num_examples: int, counted: float) -> float:
    """How many samples one measured sample counts for, on a device with `num_examples` samples.

    A kind that trains no extractor measures only some of the samples: without this factor, classes on such
    devices would seem rare. `counted`: samples in the statistics; fewer than were measured if not all classes
    are sent, which does not change the factor for those that are. Statistics of a site (`is_from_site`)
    have the factor applied already.
    """
    if statistics_of(strategy) is None or strategy.traits.trains_extractor:
        return 1.0
    return max(1.0, num_examples / max(1, _measured(strategy, num_examples), counted))


class _CachedFeatures:
    """A model whose features of the inputs x are already known."""

    def __init__(self, model: DeviceModel, x: NDArray[Any], features: NDArray[np.float32]) -> None:
        self._model, self._x, self._features = model, x, features

    def features(self, x: NDArray[Any]) -> NDArray[np.float32]:
        return self._features if x is self._x else self._model.features(x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def train(strategy: AnyStrategy, model: DeviceModel, data: LocalData, run: Run) -> Update:
    """On the device: the update together with its class statistics, both without held-out samples.

    Statistics are of samples drawn evenly. `model` holds the base. Raises as `Strategy.train`.
    """
    statistics = statistics_of(strategy)
    if statistics is None:
        return strategy.train(model, data, run)
    right = held_out.none()
    if statistics.hold_out:
        held_samples, data = held_out.split_held_out(data, statistics.hold_out, run.device)
        right = held_out.count_right(model, held_samples, run.aside)
    rows = measured(strategy, len(data), run)
    part = data if rows is None else LocalData(data.x[rows], data.y[rows])
    measurement = replace(Measured.of(model.manifest, model.features(part.x), part), right=right)
    if strategy.traits.computes_features:
        model = cast(DeviceModel, _CachedFeatures(model, part.x, measurement.features))
    return add_statistics(strategy, strategy.train(model, data, run), measurement, run)


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


def _of_chosen(measurement: Measured, statistics: ClassStatistics, run: Run) -> Measured:
    """The measured samples of those classes that are sent."""
    counts = np.bincount(measurement.y, minlength=measurement.labels)
    present = np.flatnonzero(counts >= statistics.smallest_count).tolist()
    sent = chosen_classes(present, statistics.most_classes, run)
    if len(sent) == len(present):
        return measurement
    rows = np.isin(measurement.y, sent)
    chosen = {name: getattr(measurement, name)[rows] for name in ("features", "y", "targets")}
    return replace(measurement, **chosen)


def add_statistics(strategy: AnyStrategy, update: Update, measurement: Measured, run: Run) -> Update:
    """The update with the class statistics of measured samples added, if it sends any."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return update
    part = _of_chosen(measurement, statistics, run)
    count = part.targets.shape[1]
    features = statistics.projection(part.features.shape[1], count).project(part.features)
    features = np.hstack([features, part.targets]) if count else features
    summary = measure_statistics(features, part.y, part.labels, statistics.smallest_count)
    if part is not measurement:
        summary = replace(summary, moment_sums=ClassSums(0 * summary.sums.sums, 0 * summary.sums.counts))
    sent = encode(replace(summary, right=measurement.right), statistics)
    return replace(update, tensors=with_others(update.tensors, sent))


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


def rejection_reason(strategy: AnyStrategy, sent: Tensors, num_examples: int, manifest: Manifest) -> str:
    """As `class_statistics.rejection_reason`, for the class statistics of an update of this form."""
    statistics = statistics_of(strategy)
    if statistics is None:
        return ""
    if not sent and strategy.traits.statistics_alone:
        return "class means came without class statistics"
    shape, samples = shape_of(statistics, manifest), most_samples(strategy, num_examples)
    share = statistics.hold_out or 0.0
    right = held_out.rejection_reason(sent[RIGHT], share, samples) if RIGHT in sent else ""
    return right or class_statistics.rejection_reason(sent, samples, statistics.smallest_count, shape)
