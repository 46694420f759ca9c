"""Class statistics of features, sent beside an update: counts, means, moments (docs/closed-form-head.md).

They are of the features f that the base's head takes, or where these are many of fewer random sums of them
(`projection`), before local training: the count n_c and the mean of f
for each class on the device, and from devices that train the extractor the mean of f f^T. The sums that these
stand for add up over devices to those of all samples, however these are divided (FedNCM: Legate et al. 2023;
with second moments Fed3R: Fani et al. 2024). A site sends the sums of its devices in the same way; where not
all of them sent second moments, it says beside them whose counts and means go with these.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from models.engine import DeviceModel
from models.errors import TensorError
from models.manifest import Manifest
from models.tensors import Tensors, TensorSpec, check
from profiles import Cost, DeviceProfile, Workload, predict
from profiles.cost import Pass

from .class_means import ClassMeans, ClassSums, class_sums
from .device_half import Contribution, LocalData, Run
from .entropy_subset import EntropySubset
from .few_shot import FewShot
from .kind import AnyStrategy, ClassStatistics
from .privacy import settings_of
from .workload import forward_work

PREFIX = "class-statistics/"
COUNTS, MEANS, SCALES = PREFIX + "counts", PREFIX + "means", PREFIX + "scales"
MOMENTS, SPREAD = PREFIX + "moments", PREFIX + "spread"
ALL = (COUNTS, MEANS, SCALES)
OF_MOMENTS = (PREFIX + "moment-counts", PREFIX + "moment-means", PREFIX + "moment-scales")
"""As ALL, of the samples whose second moments are sent, where these are not all."""
ROWS = PREFIX + "rows"
"""ALL in one tensor, see `packed`."""
ROW = np.dtype([("label", "<u2"), ("count", "<u4"), ("scale", "<f4")])
"""How a row of it begins, before a mean as int8."""
MOST_NORM = 1e4
"""No class mean of features is believed to be longer."""
TENSOR_BYTES = 72
"""Of a tensor on the wire beside its values, usually."""
HALF_STEP, INT8_STEP = 2.0**-11, 1 / 254
"""Rounding of a number relative to the largest of its row, at most."""


@dataclass(frozen=True)
class Statistics:
    """Sums of features by class, of all who send any and of those who send second moments too.

    `sums`: of all; `moment_sums`: of those whose `moments`, the sum of f f^T float64 (width, width), are
    there. Counts are float64 where they decay.
    """

    sums: ClassSums
    moment_sums: ClassSums
    moments: NDArray[np.float64]

    @classmethod
    def none(cls, labels: int, width: int) -> Statistics:
        nothing = ClassSums(np.zeros((labels, width)), np.zeros(labels, np.int64))
        return cls(nothing, nothing, np.zeros((width, width)))

    def add(self, other: Statistics) -> Statistics:
        return Statistics(
            _sum(self.sums, other.sums),
            _sum(self.moment_sums, other.moment_sums),
            self.moments + other.moments,
        )

    def times(self, scale: NDArray[Any]) -> Statistics:
        """Of features that are so many times as large, float64 (width,)."""
        moments = self.moments * np.outer(scale, scale)
        return Statistics(self.sums.times(scale), self.moment_sums.times(scale), moments)

    def standing_for(self, times: float) -> Statistics:
        """The same means, of so many times the samples; second moments are left as they are."""
        return replace(self, sums=ClassSums(times * self.sums.sums, times * self.sums.counts))

    def decayed(self, gamma: float) -> Statistics:
        sums, moment_sums = (
            ClassSums(gamma * one.sums, gamma * one.counts) for one in (self.sums, self.moment_sums)
        )
        return Statistics(sums, moment_sums, gamma * self.moments)


@dataclass(frozen=True)
class Measured:
    """Features float32 (n, width) of samples on the base, and their labels int64 (n,), of so many classes."""

    features: NDArray[np.float32]
    y: NDArray[np.int64]
    labels: int


def _sum(one: ClassSums, other: ClassSums) -> ClassSums:
    return ClassSums(one.sums + other.sums, one.counts + other.counts)


def unfit(manifest: Manifest, statistics: ClassStatistics) -> str:
    """Why there is no closed-form head for a bundle from such statistics; empty where there is."""
    head = manifest.head
    if head.bias is None:
        return "its head has no bias"
    shape = manifest.features.get("head", (head.features,))
    if shape != (head.features,):
        return f"its head takes features of shape {shape}, expected one vector for each sample"
    if manifest.scale is not None and statistics.projection(head.features).changes:
        return f"its {head.features} features have a scale, with which at most {statistics.features} can be"
    return ""


def by_default(kinds: Sequence[AnyStrategy]) -> bool:
    """Whether a task that offers these kinds serves a closed-form head by default.

    It does if there are several, and one can send second moments of features, which such a head needs.
    """
    return len(kinds) > 1 and any(kind.trains_extractor and _can_send(kind) for kind in kinds)


def _can_send(kind: AnyStrategy) -> bool:
    """Not under differential privacy, nor from a smaller model, whose features are others."""
    return not kind.member and settings_of(kind) is None


def wished(strategy: AnyStrategy) -> ClassStatistics | None:
    """The class statistics beside an update of this form; None beside class means, which are the same.

    Beside scalars alone, means are int8.
    """
    statistics = strategy.statistics
    if statistics is None or not _can_send(strategy) or isinstance(strategy, ClassMeans):
        return None
    return replace(statistics, numbers="int8") if strategy.scalars else statistics


def asked(kinds: tuple[AnyStrategy, ...], number: int, device: str) -> tuple[AnyStrategy, ...]:
    """The kinds of round `number` as this device is asked for them: scalars alone come without statistics in
    all but round 1 and one in `every` rounds, which is another for another device.
    """
    turn = number + zlib.crc32(device.encode())
    late = tuple(
        kind.scalars > 0 and kind.statistics is not None and turn % kind.statistics.every > 0
        for kind in kinds
    )
    return _without(kinds, late) if number > 1 and any(late) else kinds


@lru_cache(maxsize=64)
def _without(kinds: tuple[AnyStrategy, ...], which: tuple[bool, ...]) -> tuple[AnyStrategy, ...]:
    return tuple(asking(kind, None) if one else kind for kind, one in zip(kinds, which, strict=True))


def asking(strategy: AnyStrategy, statistics: ClassStatistics | None) -> AnyStrategy:
    """The same kind, with these class statistics beside its updates."""
    return cast(AnyStrategy, replace(cast(Any, strategy), statistics=statistics))


def cost(strategy: AnyStrategy, workload: Workload, profile: DeviceProfile) -> Cost:
    """Of an update with its class statistics: one more forward pass, before anything else, whose features are
    kept; few-shot training has these anyhow. Raises MissingGraph.
    """
    own, statistics = strategy.cost(workload, profile), wished(strategy)
    if statistics is None or not workload.samples:
        return own
    samples, wide = _measured(strategy, workload.samples), workload.feature_width
    width = statistics.projection(wide).size
    present = sum(count >= statistics.smallest_count for count in workload.class_counts)
    work = forward_work(replace(workload, class_counts=(samples,)), samples, 0)
    short = statistics.numbers == "int8"
    size = present * ((1 if short else 2) * width + 4) + 4 * workload.labels + 3 * TENSOR_BYTES
    if short and not strategy.trains_extractor:
        size = present * (ROW.itemsize + width) + TENSOR_BYTES
    passes, peak = () if isinstance(strategy, FewShot) else work.passes, work.peak_bytes
    if strategy.trains_extractor:
        size += width * (width + 1) + 4 + 2 * TENSOR_BYTES
        passes, peak = (*passes, Pass("moments", samples, 2.0 * width**2)), peak + 16 * width**2
    work = replace(work, passes=passes, peak_bytes=peak, bytes_up=size, bytes_down=0)
    more, kept = predict(profile, work, strategy.name), 4 * samples * wide
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
    """How many samples' features a device of so many computes."""
    statistics = strategy.statistics
    all_of_them = strategy.trains_extractor or isinstance(strategy, FewShot)
    if all_of_them or statistics is None or not statistics.samples:
        return samples
    return min(samples, statistics.samples)


def stands_for(strategy: AnyStrategy, num_examples: int, number: int, counted: float) -> float:
    """How many samples one measured sample counts for, in round `number`, of a device with `num_examples`.

    A kind that trains no extractor measures only a part of the samples, an entropy subset sends those of as
    many samples as it selects, and scalars alone bring statistics only once in `every` rounds. Without this
    factor the classes on such devices would be taken for rare.
    `counted`: how many samples the statistics say they are of. A site has applied the factor already.
    """
    statistics = wished(strategy)
    if statistics is not None and isinstance(strategy, EntropySubset):
        return 1 / strategy.share
    if statistics is None or strategy.trains_extractor:
        return 1.0
    rounds = statistics.every if strategy.scalars and number > 1 else 1
    return rounds * max(1.0, num_examples / max(1, _measured(strategy, num_examples), counted))


class _Featured:
    """A model whose features of these inputs are known."""

    def __init__(self, model: DeviceModel, x: NDArray[Any], features: NDArray[np.float32]) -> None:
        self._model, self._x, self._known = model, x, features

    def features(self, x: NDArray[Any]) -> NDArray[np.float32]:
        return self._known if x is self._x else self._model.features(x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def train(strategy: AnyStrategy, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
    """On the device: the update, and beside it the class statistics of as many samples, drawn evenly.

    `model` holds the base. Raises as Strategy.train does.
    """
    if wished(strategy) is None:
        return strategy.train(model, data, run)
    rows = measured(strategy, len(data), run)
    x, y = (data.x, data.y) if rows is None else (data.x[rows], data.y[rows])
    known = Measured(model.features(x), y, len(model.manifest.labels))
    if isinstance(strategy, FewShot):
        model = cast(DeviceModel, _Featured(model, x, known.features))
    return beside(strategy, strategy.train(model, data, run), known, run)


def measured(strategy: AnyStrategy, samples: int, run: Run) -> NDArray[np.int64] | None:
    """Indices of the samples whose features a device of so many computes, drawn evenly; None: of all."""
    return run.drawn(_measured(strategy, samples), samples)


def beside(strategy: AnyStrategy, made: Contribution, known: Measured, run: Run) -> Contribution:
    """An update with the class statistics of samples `measured`, fewer where the update counts fewer.

    The same update where no statistics are asked for.
    """
    statistics = wished(strategy)
    if statistics is None:
        return made
    features, y = known.features, known.y
    if (drawn := run.drawn(made.num_examples, len(y))) is not None:
        features, y = features[drawn], y[drawn]
    features = statistics.projection(features.shape[1]).project(features)
    found = of(features, y, known.labels, statistics.smallest_count)
    sent = encode(found, statistics.numbers, strategy.trains_extractor)
    return replace(made, tensors={**made.tensors, **sent})


def of(features: NDArray[np.float32], y: NDArray[np.int64], labels: int, smallest: int) -> Statistics:
    """Of features (n, width) and their labels (n,), without classes of fewer samples than `smallest`."""
    sums = class_sums(features, y, labels).at_least(smallest)
    counted = features[sums.counts[y] > 0].astype(np.float64)
    return Statistics(sums, sums, counted.T @ counted)


def encode(statistics: Statistics, numbers: str, moments: bool) -> dict[str, NDArray[Any]]:
    """Tensors for the wire: int32 counts (labels,); a row of means for each class with a count, each relative
    to its largest number, whose size is in the scales float32; `moments`: the mean of f f^T, the upper
    triangle of it, float16 (1, width (width + 1) / 2), in the same way, and no row where there is no sample.
    """
    known = statistics.moment_sums
    sent = _written(statistics.sums, numbers, ALL)
    if moments:
        upper = statistics.moments[np.triu_indices(len(statistics.moments))][None]
        count = int(known.counts.sum())
        sent[MOMENTS], sent[SPREAD] = _short(upper / count if count else upper[:0], "float16")
        if not np.array_equal(known.counts, statistics.sums.counts):
            sent |= _written(known, numbers, OF_MOMENTS)
    return sent


def _written(sums: ClassSums, numbers: str, names: tuple[str, str, str]) -> dict[str, NDArray[Any]]:
    """Counts, means and scales, by these names."""
    present = sums.present
    means, scales = _short(sums.sums[present] / sums.counts[present, None], numbers)
    return dict(zip(names, (sums.counts.astype(np.int32), means, scales), strict=True))


def _short(rows: NDArray[np.float64], numbers: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Rows relative to the largest number of each, as float16 or int8; and that number."""
    largest = np.abs(rows).max(axis=1, initial=0.0).astype(np.float32)
    relative = rows / np.where(largest > 0, largest, 1).astype(np.float64)[:, None]
    if numbers == "int8":
        return np.rint(127 * np.clip(relative, -1, 1)).astype(np.int8), largest
    return relative.astype(np.float16), largest


def _long(values: NDArray[Any], largest: NDArray[np.float32]) -> NDArray[np.float64]:
    relative = values.astype(np.float64) / (127 if values.dtype == np.int8 else 1)
    return relative * largest.astype(np.float64)[:, None]


def decode(sent: Tensors) -> Statistics:
    """What tensors of the wire stand for; they were checked."""
    known = _read(sent, ALL)
    labels, width = known.sums.shape
    nothing = Statistics.none(labels, width)
    if MOMENTS not in sent or not len(sent[MOMENTS]):
        return Statistics(known, nothing.moment_sums, nothing.moments)
    of_moments = _read(sent, OF_MOMENTS) if OF_MOMENTS[0] in sent else known
    moments = nothing.moments
    moments[np.triu_indices(width)] = _long(sent[MOMENTS], sent[SPREAD])[0] * of_moments.counts.sum()
    return Statistics(known, of_moments, np.triu(moments) + np.triu(moments, 1).T)


def _read(sent: Tensors, names: tuple[str, str, str]) -> ClassSums:
    """What `_written` has written."""
    counts, means = sent[names[0]].astype(np.int64), _long(sent[names[1]], sent[names[2]])
    sums = np.zeros((len(counts), means.shape[1]))
    sums[counts > 0] = means * counts[counts > 0, None]
    return ClassSums(sums, counts)


def packed(sent: Tensors) -> Tensors:
    """An update as it goes on the wire.

    Class statistics in int8 without second moments become one tensor, uint8 (classes, 10 + width), with a row
    for each class that has a count. Any other update stays as it is.
    """
    if COUNTS not in sent or MOMENTS in sent or sent[MEANS].dtype != np.int8:
        return sent
    present = np.flatnonzero(sent[COUNTS])
    begin = np.empty(len(present), ROW)
    begin["label"], begin["count"], begin["scale"] = present, sent[COUNTS][present], sent[SCALES]
    numbers = begin.view(np.uint8).reshape(len(present), ROW.itemsize)
    rest = {name: value for name, value in sent.items() if name not in ALL}
    return {**rest, ROWS: np.hstack([numbers, sent[MEANS].view(np.uint8)])}


def unpacked(sent: Tensors, accepted: Sequence[TensorSpec]) -> Tensors:
    """The same with the tensors that were packed, of the shapes `accepted`. Raises TensorError."""
    shapes = {spec.name: spec.shape for spec in accepted}
    if ROWS not in sent or MEANS not in shapes:
        return sent
    rows, (labels, width) = sent[ROWS], shapes[MEANS]
    check({ROWS: rows}, [TensorSpec(ROWS, (labels, ROW.itemsize + width), "uint8", variable=True)])
    begin = np.ascontiguousarray(rows[:, : ROW.itemsize]).view(ROW).reshape(len(rows))
    present = begin["label"].astype(np.int64)
    if (np.diff(present) <= 0).any() or (present >= labels).any():
        raise TensorError(
            f"{ROWS} has rows of classes {present.tolist()}, expected ascending, below {labels}"
        )
    counts = np.zeros(labels, np.int32)
    counts[present] = np.minimum(begin["count"], np.iinfo(np.int32).max)
    rest = {name: value for name, value in sent.items() if name != ROWS}
    means = np.ascontiguousarray(rows[:, ROW.itemsize :]).view(np.int8)
    return {**rest, COUNTS: counts, MEANS: means, SCALES: begin["scale"].astype(np.float32)}


def expected(strategy: AnyStrategy, manifest: Manifest) -> tuple[TensorSpec, ...]:
    """What an update of this form consists of, with its class statistics where it has any."""
    return (*strategy.expected(manifest), *specs(strategy, manifest))


def specs(strategy: AnyStrategy, manifest: Manifest) -> tuple[TensorSpec, ...]:
    """Of the class statistics beside an update of this form."""
    statistics = wished(strategy)
    if statistics is None:
        return ()
    width = statistics.projection(manifest.head.features).size
    found = _class_specs(statistics, manifest, ALL)
    if not strategy.trains_extractor:
        return found
    moments = TensorSpec(MOMENTS, (1, width * (width + 1) // 2), "float16", variable=True)
    return (*found, moments, TensorSpec(SPREAD, (1,), variable=True))


def _class_specs(
    statistics: ClassStatistics, manifest: Manifest, names: tuple[str, str, str]
) -> tuple[TensorSpec, ...]:
    """Of counts, means and scales by these names."""
    labels, width = len(manifest.labels), statistics.projection(manifest.head.features).size
    return (
        TensorSpec(names[0], (labels,), "int32"),
        TensorSpec(names[1], (labels, width), statistics.numbers, variable=True),
        TensorSpec(names[2], (labels,), variable=True),
    )


def accepted(strategy: AnyStrategy, manifest: Manifest) -> tuple[TensorSpec, ...]:
    """What an update of this form may consist of: that of a site says whose second moments it has, too."""
    statistics, whole = wished(strategy), expected(strategy, manifest)
    if statistics is None or not strategy.trains_extractor:
        return whole
    return (*whole, *_class_specs(statistics, manifest, OF_MOMENTS))


def expected_of(sent: Tensors, accepted: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """What an update is held against: a device need not send class statistics, and all that send second
    moments send them of all samples that they count, but for a site.
    """
    without = () if COUNTS in sent and OF_MOMENTS[0] in sent else OF_MOMENTS
    return [
        spec
        for spec in accepted
        if spec.name not in without and (COUNTS in sent or not spec.name.startswith(PREFIX))
    ]


def parted(sent: Tensors) -> tuple[Tensors, Tensors]:
    """An update without its class statistics, and these; empty where it came without."""
    if COUNTS not in sent:
        return sent, {}
    found = {name: value for name, value in sent.items() if name.startswith(PREFIX)}
    return {name: value for name, value in sent.items() if name not in found}, found


def doubt(sent: Tensors, num_examples: int, smallest: int) -> str:
    """Why class statistics of the right shapes and dtypes are not believed, with values; empty when they are,
    and where there are none.

    Rounding is allowed for: means and moments came rounded.
    """
    if not sent:
        return ""
    total = int(sent[COUNTS].sum(dtype=np.int64))
    if why := _doubt_classes(sent, ALL, smallest):
        return why
    if total > num_examples:
        return f"class counts sum to {total}, num_examples is {num_examples}"
    if MOMENTS not in sent:
        return ""
    if OF_MOMENTS[0] not in sent:
        return _doubt_moments(sent, ALL)
    more = np.flatnonzero(sent[OF_MOMENTS[0]] > sent[COUNTS])
    if len(more):
        return f"class {more[0]} has second moments of more samples than are counted"
    return _doubt_classes(sent, OF_MOMENTS, smallest) or _doubt_moments(sent, OF_MOMENTS)


def _doubt_classes(sent: Tensors, names: tuple[str, str, str], smallest: int) -> str:
    """Of the counts and means by these names."""
    counts, (means, scales) = sent[names[0]].astype(np.int64), (sent[name] for name in names[1:])
    few = np.flatnonzero((counts < 0) | ((counts > 0) & (counts < smallest)))
    if len(few):
        return f"class {few[0]} is counted {counts[few[0]]} times, expected 0, or {smallest} or more"
    present = np.flatnonzero(counts)
    if not len(means) == len(scales) == len(present):
        return f"{len(means)} class means with {len(scales)} scales, {len(present)} classes are counted"
    norms = np.linalg.norm(_long(means, scales), axis=1)
    if (norms > MOST_NORM).any() or (scales < 0).any():
        worst, most = int(norms.argmax()), f"at most {MOST_NORM:g} is believed"
        return f"the mean of class {present[worst]} is {norms[worst]:.4g} long, {most}"
    return ""


def _doubt_moments(sent: Tensors, names: tuple[str, str, str]) -> str:
    """By Cauchy-Schwarz the mean of f_i^2 is at least what the means by these names make of it, and
    |mean of f_i f_j| at most the root of the product of those of f_i^2 and f_j^2.
    """
    counts = sent[names[0]].astype(np.int64)
    counts, means = counts[counts > 0], _long(sent[names[1]], sent[names[2]])
    if not len(sent[MOMENTS]) == len(sent[SPREAD]) == bool(len(counts)):
        return f"second moments in {len(sent[MOMENTS])} rows, of {len(counts)} classes"
    if not len(counts):
        return ""
    moments = decode(sent).moments / counts.sum()
    square = moments.diagonal()
    step = INT8_STEP if sent[names[1]].dtype == np.int8 else HALF_STEP
    weights = counts / counts.sum()
    largest = sent[names[2]].astype(np.float64)
    slack = 4 * HALF_STEP * float(np.abs(moments).max())
    least = weights @ means**2 - weights @ (2 * step * np.abs(means) * largest[:, None] + 1e-12)
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
