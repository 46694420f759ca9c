"""FedNCM: sums of features by class, whose means make a classifier (thesis 000, algorithm 1; paper 001)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from models.engine import DeviceModel
from models.head import SoftmaxHead
from models.manifest import Manifest
from models.optimizer import Sgd
from models.tensors import Tensors, TensorSpec
from profiles import Cost, DeviceProfile, Workload, predict

from . import class_sums, ranges
from .aggregator_half import Effect, RoundModel
from .class_sums import ClassSums
from .device_half import NOTHING, Contribution, LocalData, Run
from .feature_scale import scale_by, scale_in
from .kind import About, Usual
from .ranges import MOST, Setting, SmallestCount
from .tensor_mean import TensorMean
from .workload import forward_work, too_few_of_each, upload_bytes

ROWS = "rows"
"""The tensor of class means that are sent as rows."""
MASKED = -1e9
"""The bias of a class that nobody has: its logit is masked, not zero."""


@dataclass(frozen=True)
class ClassMeans(Usual):
    """One forward pass; per class, the sum of the features and the count. Exact for any partition.

    `head="normalised-means"` is FedNCM: rows l_c / ||l_c||, bias 0 (section 3.1.2), served on the distributed
    extractor and set as the base's classifier, past any average and server optimiser (where FedNCM+FT
    starts). `head="nearest-mean"` sets the same, and serves the class whose mean is nearest to the features:
    rows l_c, bias -||l_c||^2 / 2. `head="trained"` (ours, for rounds in which only some devices send class
    means) trains the distributed classifier on the means, one sample a class, and averages it with the other
    kinds' by the samples behind it.

    `gathered` (ours): the sums of earlier rounds count too, for rounds in which only some devices take part;
    the extractor must stand still meanwhile. Who takes part twice counts twice.

    `samples` (ours): a device with more draws as many evenly, and measures these alone; what it sends then
    stands for all that it has.

    `numbers` (ours): "float32" sends the sums of all classes, as the paper does; "int8" and "float16" send a
    row for each class that the device has, with its mean in these (`class_sums.write_rows`). `summed` reads
    both.

    `smallest_count` (ours): a class with fewer samples on the device is neither sent nor counted. The sum of
    a class with one sample would be that sample's features; the paper sends it, as does 1.

    In a bundle whose features have a scale (ours) all but "trained" set it, and the means are of features
    that it has multiplied (`feature_scale`).
    """

    name: ClassVar[str] = "class-means"
    about: ClassVar[About] = About(
        "nothing: one forward pass of each sample",
        "sums of features and counts, by class",
        "FedNCM: Legate et al. 2023",
    )
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
    samples: Annotated[
        int,
        Setting("Most samples that a device measures; 0: all.", 40, "samples", at_least=0, at_most=MOST),
    ] = 0
    numbers: Annotated[
        Literal["float32", "float16", "int8"],
        Setting("As what means are sent; float32: as sums, of classes that the device has not too.", "int8"),
    ] = "float32"

    def __post_init__(self) -> None:
        ranges.check(self)

    def unfit(self, workload: Workload) -> str:
        return super().unfit(workload) or too_few_of_each(workload, self.smallest_count)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        width = workload.feature_width
        work = forward_work(workload, self._measured(workload.samples), (width + 1) * workload.labels)
        if self.numbers != "float32":
            present = sum(count >= self.smallest_count for count in workload.class_counts)
            rows = present * class_sums.row_bytes(width, self.numbers)
            work = replace(work, bytes_up=rows + upload_bytes(0, 1))
        return predict(profile, work, self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
        began, rows = run.clock(), run.drawn(self._measured(len(data)), len(data))
        x, y = (data.x, data.y) if rows is None else (data.x[rows], data.y[rows])
        features = model.features(x)
        run.pace(began, 1.0)
        return self._made(features, y, len(data), model.manifest)

    def from_features(
        self, features: NDArray[np.float32], y: NDArray[np.int64], manifest: Manifest, run: Run
    ) -> Contribution:
        rows = run.drawn(self._measured(len(y)), len(y))
        if rows is None:
            return self._made(features, y, len(y), manifest)
        return self._made(features[rows], y[rows], len(y), manifest)

    def _measured(self, samples: int) -> int:
        """How many samples' features a device of so many computes."""
        return min(samples, self.samples) if self.samples else samples

    def _made(
        self, features: NDArray[np.float32], y: NDArray[np.int64], samples: int, manifest: Manifest
    ) -> Contribution:
        """Of what was measured on a device of so many samples. Classes that are left out stand for none."""
        totals = class_sums.by_class(features, y, len(manifest.labels)).at_least(self.smallest_count)
        if self.numbers == "float32":
            tensors = _plain(totals)
        else:
            tensors = {ROWS: class_sums.write_rows(totals, self.numbers)}
        stands_for = samples * int(totals.counts.sum()) // max(1, len(y))
        return Contribution(self.name, tensors, stands_for, float("nan"))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        labels, width = len(manifest.labels), manifest.head.features
        if self.numbers != "float32":
            return (class_sums.spec_of_rows(ROWS, labels, width, self.numbers),)
        return TensorSpec("sums", (labels, width)), TensorSpec("counts", (labels,), "int32")

    def doubt(self, update: Tensors, num_examples: int, manifest: Manifest) -> str:
        """Counts are of samples: none negative, together those sent, or fewer where a device measures a part
        of its own, and no count means no sum.
        """
        if ROWS in update:
            labels, width = len(manifest.labels), manifest.head.features
            if why := class_sums.doubt_rows(update[ROWS], labels, width, self.smallest_count):
                return why
            update = _read(update, manifest)
        counts = update["counts"].astype(np.int64)
        if counts.min(initial=0) < 0:
            return f"count of class {int(counts.argmin())} is {int(counts.min())}, expected 0 or more"
        total = int(counts.sum())
        if total != num_examples and not (self.samples and 0 < total < num_examples):
            return f"counts sum to {total}, num_examples is {num_examples}"
        stray = np.flatnonzero((counts == 0) & np.abs(update["sums"]).any(axis=1))
        return f"sums of class {int(stray[0])} are not 0, its count is" if len(stray) else ""

    def start(self, model: RoundModel) -> ClassSums:
        labels, width = len(model.manifest.labels), model.manifest.head.features
        return ClassSums(np.zeros((labels, width)), np.zeros(labels, np.int64))

    def fold(self, state: ClassSums, contribution: Contribution, weight: float) -> ClassSums:
        """Counts weigh by themselves; `weight` changes nothing."""
        sums, counts = contribution.tensors["sums"], contribution.tensors["counts"]
        return ClassSums(state.sums + sums, state.counts + counts)

    def finish(self, state: ClassSums, model: RoundModel) -> Effect:
        if not state.counts.any():
            return Effect()
        state = state.times(1 / scale_in(model.manifest, model.weights))
        if self.gathered:
            state = state.beside(model.memory)
            return replace(self._effect(state, model), memory=state.kept())
        return self._effect(state, model)

    def _effect(self, state: ClassSums, model: RoundModel) -> Effect:
        """`state` is of features as they are without a scale."""
        examples = float(state.counts.sum())
        if self.head == "trained":
            state = state.times(scale_in(model.manifest, model.weights))
            head = SoftmaxHead(model.manifest, model.weights)
            every = np.arange(len(state.present))
            head.train(state.means(), state.present, repeat(every, self.steps), Sgd(self.lr))
            return Effect(mean=TensorMean().add(head.params.tensors(), examples), num_examples=examples)
        return self._nearest_mean(state, model, examples)

    def _nearest_mean(self, state: ClassSums, model: RoundModel, examples: float) -> Effect:
        """The served classifier masks absent classes; the base keeps its own rows for them, to train on.

        Without a bias nothing is masked: absent classes have logit 0, and what is served are unit rows. Where
        features have a scale, it is set beforehand, and what the rows of absent classes say stays as it was.
        """
        names, present = model.manifest.head, state.present
        scale, assigned = self._scale(state, model)
        means = state.times(scale).means()
        own = {name: model.weights[name].copy() for name in (names.weight, names.bias) if name is not None}
        own[names.weight] *= (scale_in(model.manifest, model.weights) / scale).astype(np.float32)
        masked = {name: np.full_like(own[name], 0 if name == names.weight else MASKED) for name in own}
        unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.float32(1e-12))
        heads = [(own, unit, np.float32(0)), (masked, unit, np.float32(0))]
        if self.head == "nearest-mean" and names.bias is not None:
            heads[1] = (masked, means, -np.square(means).sum(axis=1) / 2)
        for head, rows, bias in heads:
            head[names.weight][present] = rows
            if names.bias is not None:
                head[names.bias][present] = bias
        return Effect(assigned={**own, **assigned}, served={**masked, **assigned}, num_examples=examples)

    def _scale(self, state: ClassSums, model: RoundModel) -> tuple[NDArray[np.float64], Tensors]:
        """What features are to be multiplied by, and the tensor that says so, where the bundle has one."""
        if model.manifest.scale is None:
            return scale_in(model.manifest, model.weights), NOTHING
        scale = scale_by(state.means())
        return scale.astype(np.float64), {model.manifest.scale: scale}


def summed(update: Contribution, manifest: Manifest) -> Contribution:
    """Class means as sums and counts of all samples that they stand for, in whole numbers; `update` as it was
    sent, and not doubted.
    """
    tensors = _read(update.tensors, manifest)
    counts = tensors["counts"]
    measured = int(counts.sum(dtype=np.int64))
    if 0 < measured < update.num_examples:
        whole = np.rint(counts * (update.num_examples / measured)).astype(np.int32)
        sums = tensors["sums"] * (whole / np.maximum(1, counts))[:, None]
        tensors = {"sums": sums.astype(np.float32), "counts": whole}
    return update if tensors is update.tensors else replace(update, tensors=tensors)


def _read(update: Tensors, manifest: Manifest) -> Tensors:
    """Sums and counts, of rows too."""
    if ROWS not in update:
        return update
    return _plain(class_sums.read_rows(update[ROWS], len(manifest.labels), manifest.head.features))


def _plain(sums: ClassSums) -> Tensors:
    return {"sums": sums.sums.astype(np.float32), "counts": sums.counts.astype(np.int32)}
