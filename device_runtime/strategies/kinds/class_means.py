"""FedNCM: devices send sums of features by class, whose means make a classifier.

Thesis 000, algorithm 1; paper 001.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, Workload, predict
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import Comparable, ComparedAs, MergedAtSite, Summable
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Settings, Strategy
from device_runtime.strategies.settings import MOST, Setting, SmallestCount
from device_runtime.strategies.statistics.bounds import StatisticsBounds, no_rounds
from device_runtime.strategies.statistics.class_statistics import Statistics, StatisticsFile, StatisticsSource
from device_runtime.strategies.statistics.class_sums import ClassSums, scale_by, scale_in, sum_by_class
from device_runtime.strategies.training.local_training import follows_plan
from device_runtime.strategies.training.workload import ENVELOPE_BYTES, forward_work, too_few_of_each

MASKED_BIAS = -1e9
"""The bias of a class that no device has: its logit is masked, not zero."""


@dataclass(frozen=True)
class ClassMeans(
    Comparable,
    Summable,
    MergedAtSite,
    Strategy[StatisticsFile],
    by_class=True,
    statistics_alone=True,
    reveals="sum of features and number of samples of each class",
):
    """Devices run one forward pass, and send the sum of features and the count of each class.

    The result is exact for any division of the samples among devices.

    head="normalised-means": FedNCM: rows l_c / ||l_c||, bias 0 (section 3.1.2). This classifier is served on
    the distributed extractor, and is assigned to the base, past any average and server optimiser (FedNCM+FT
    starts from it).
    head="nearest-mean": assigns the same to the base, and serves the class whose mean is nearest to the
    features: rows l_c, bias -||l_c||^2 / 2.
    head="trained" (ours, for rounds in which only some devices send class means): trains the distributed
    classifier on the means, one sample a class, and averages it with the other kinds', weighted by the
    samples behind it.

    gathered (ours): sums of earlier rounds count too, for rounds in which only some devices take part. The
    extractor must not change meanwhile. A device that takes part twice counts twice.

    In a round whose head is computed in closed form from class statistics (ours), a contribution is these
    statistics alone (`class_statistics`), of as many samples as the task asks for, and the base stays.

    smallest_count (ours): a class with fewer samples on the device is neither sent nor counted. The sum of a
    class with one sample would be that sample's features; the paper sends it, as does smallest_count = 1.

    In a bundle whose features have a scale (ours), every `head` but "trained" sets it, and the means are of
    the scaled features (`scale_by`).
    """

    name: ClassVar[str] = "class-means"
    about: ClassVar[KindInfo] = KindInfo(
        "nothing: one forward pass of each sample",
        "sums of features and counts, by class",
        "FedNCM: Legate et al. 2023",
    )
    mixed_round_settings: ClassVar[Settings] = {"head": "trained"}
    compared_as: ClassVar[ComparedAs | None] = "class-means"
    summed: ClassVar[tuple[str, ...]] = ("sums", "counts")
    head: Annotated[
        Literal["normalised-means", "nearest-mean", "trained"],
        Setting("Classifier made of the means: assigned in one of two forms, or trained.", "trained"),
    ] = "normalised-means"
    steps: Annotated[
        int,
        Setting('Steps on the aggregator for head = "trained".', 50, "steps", at_least=1, at_most=MOST),
    ] = 20
    lr: Annotated[
        float, Setting('Learning rate on the aggregator for head = "trained".', 0.05, more_than=0)
    ] = 0.1
    gathered: Annotated[bool, Setting("Whether sums of earlier rounds count too.", example=True)] = False
    smallest_count: SmallestCount = 2

    def __post_init__(self) -> None:
        ranges.check(self)

    @property
    def smallest_class(self) -> int:
        return max(self.smallest_count, self.statistics.smallest_count if self.statistics is not None else 0)

    def infeasible_reason(self, workload: Workload) -> str:
        return super().infeasible_reason(workload) or too_few_of_each(workload, self.smallest_class)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        if self.statistics is not None:  # `kind_statistics.cost` adds their passes and bytes
            return predict(profile, replace(forward_work(workload, 0, 0), bytes_up=ENVELOPE_BYTES), self.name)
        values = (workload.feature_width + 1) * workload.labels
        return predict(profile, forward_work(workload, workload.samples, values), self.name)

    @follows_plan
    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        if self.statistics is not None:
            return Update(self.name, NO_TENSORS, len(data), float("nan"))
        began = run.clock()
        features = model.features(data.x)
        run.pace(began, 1.0)
        return self.from_features(features, data.y, model.manifest)

    def from_features(
        self, features: NDArray[np.float32], y: NDArray[np.int64], manifest: Manifest
    ) -> Update:
        if self.statistics is not None:
            return Update(self.name, NO_TENSORS, len(y), float("nan"))
        totals = sum_by_class(features, y, len(manifest.labels)).at_least(self.smallest_count)
        tensors = {"sums": totals.sums.astype(np.float32), "counts": totals.counts.astype(np.int32)}
        return Update(self.name, tensors, int(totals.counts.sum()), float("nan"))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        if self.statistics is not None:
            return ()
        labels = len(manifest.labels)
        return (
            TensorSpec("sums", (labels, manifest.head.features)),
            TensorSpec("counts", (labels,), "int32"),
        )

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Reject negative counts, counts that do not sum to `num_examples`, and sums without a count."""
        if self.statistics is not None:
            return ""
        counts = update["counts"].astype(np.int64)
        if counts.min(initial=0) < 0:
            return f"count of class {int(counts.argmin())} is {int(counts.min())}, expected 0 or more"
        if int(counts.sum()) != num_examples:
            return f"counts sum to {int(counts.sum())}, num_examples is {num_examples}"
        stray = np.flatnonzero((counts == 0) & np.abs(update["sums"]).any(axis=1))
        return f"sums of class {int(stray[0])} are not 0, but its count is 0" if len(stray) else ""

    def site_refusal(self) -> str:
        if self.statistics is None and self.head != "trained":
            return f"its classifier is served, not trained into the base (head is {self.head!r})"
        return ""

    def changes(self, manifest: Manifest) -> tuple[str, ...]:
        return tuple(name for name in (manifest.head.weight, manifest.head.bias) if name is not None)

    def start(self, model: RoundModel) -> StatisticsFile:
        return StatisticsFile(len(model.manifest.labels), model.manifest.head.features)

    def fold(self, state: StatisticsFile, update: Update, weight: float) -> StatisticsFile:
        """Add sums and counts; `weight` is ignored because counts are the weights. Raises OSError."""
        if self.statistics is not None:
            return state
        sums, counts = update.tensors["sums"].astype(np.float64), update.tensors["counts"]
        if counts.any():
            nothing = Statistics.none(state.labels, state.width)
            size = StatisticsSource(float(counts.sum()))
            state.add(replace(nothing, sums=ClassSums(sums, counts)), size)
        return state

    def finish(self, state: StatisticsFile, model: RoundModel) -> KindResult:
        """Sums within the bounds that the other devices and earlier rounds give (`bounds`)."""
        if not len(state):
            return KindResult()
        scale = scale_in(model.manifest, model.weights)
        nothing = Statistics.none(state.labels, state.width)
        before = nothing.sums.beside({} if not self.gathered else model.memory)
        earlier = replace(nothing, sums=before.times(scale))
        limits = StatisticsBounds(state, earlier, model.memory.get("usual", no_rounds()))
        total = nothing.sums
        for statistics in limits.bounded():
            total = total + statistics.sums
        total = total.times(1 / scale)
        if self.gathered:
            total = total.beside(model.memory)
            return replace(self._result(total, model), memory={**total.kept(), "usual": limits.rounds})
        return self._result(total, model)

    def _result(self, state: ClassSums, model: RoundModel) -> KindResult:
        """The result of these sums, which are of features without the bundle's scale."""
        examples = float(state.counts.sum())
        if self.head == "trained":
            state = state.times(scale_in(model.manifest, model.weights))
            head = SoftmaxHead(model.manifest, model.weights)
            every = np.arange(len(state.present))
            head.train(state.means(), state.present, repeat(every, self.steps), Sgd(self.lr))
            return KindResult(mean=TensorMean().add(head.params.tensors(), examples), num_examples=examples)
        return self._nearest_mean(state, model, examples)

    def _nearest_mean(self, state: ClassSums, model: RoundModel, examples: float) -> KindResult:
        """Assign a classifier of class means; the base keeps its own rows for absent classes, to train on.

        The served classifier masks absent classes. Without a bias nothing is masked: absent classes have
        logit 0, and unit rows are served. If features have a scale, it is set first, and rows of absent
        classes are rescaled so that their logits stay the same.
        """
        names, present = model.manifest.head, state.present
        scale, assigned = self._scale(state, model)
        means = state.times(scale).means()
        own = {name: model.weights[name].copy() for name in (names.weight, names.bias) if name is not None}
        own[names.weight] *= (scale_in(model.manifest, model.weights) / scale).astype(np.float32)
        masked = {name: np.full_like(own[name], 0 if name == names.weight else MASKED_BIAS) for name in own}
        unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.float32(1e-12))
        heads = [(own, unit, np.float32(0)), (masked, unit, np.float32(0))]
        if self.head == "nearest-mean" and names.bias is not None:
            heads[1] = (masked, means, -np.square(means).sum(axis=1) / 2)
        for head, rows, bias in heads:
            head[names.weight][present] = rows
            if names.bias is not None:
                head[names.bias][present] = bias
        return KindResult(assigned={**own, **assigned}, served={**masked, **assigned}, num_examples=examples)

    def _scale(self, state: ClassSums, model: RoundModel) -> tuple[NDArray[np.float64], Tensors]:
        """The new scale of the features, and its tensor if the bundle has one."""
        if model.manifest.scale is None:
            return scale_in(model.manifest, model.weights), NO_TENSORS
        scale = scale_by(state.means())
        return scale.astype(np.float64), {model.manifest.scale: scale}
