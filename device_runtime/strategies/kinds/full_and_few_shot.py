"""FedFSC: full updates make the base, few-shot trained classifiers are served.

Thesis 002, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Work, Workload, predict
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import MERGES_MORE
from device_runtime.strategies.interface.device_half import (
    FEW_SHOT,
    LocalData,
    OutOfTime,
    Run,
    Update,
    few_shot_head,
)
from device_runtime.strategies.interface.kind import KindInfo, Settings
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.terms.proximal import FscProx
from device_runtime.strategies.training.local_training import TrainingPlan, TrainingResult
from device_runtime.strategies.training.workload import head_specs

from .fedavg import FedAvg
from .few_shot import FewShot


@dataclass(frozen=True)
class Means:
    """The means of a round: full updates weighted by samples, classifiers unweighted."""

    full: TensorMean
    classifiers: TensorMean


@dataclass(frozen=True)
class FullAndFewShot(
    FedAvg,
    by_class=True,
    refused=(
        "terms.dp-sgd", "few_shot.join_base", "few_shot.send_mean", "few_shot.codec", "few_shot.least_samples"
    ),
):  # fmt: skip
    """Each device trains the *distributed* model fully, and separately its classifier on a few samples.

    The next base is the mean of the full updates, weighted by samples. Served is {theta_fs^t, phi^t} (lines
    14 to 16): the plain mean of the classifiers, those of `few-shot` in the same round included, on the
    extractor that was distributed. Round 1 is for `full` alone (line 7).
    With reduced_epochs (or least_epochs) it is FedFSC+(baseline+) (section 4.5.2): a device that can finish
    sends the full update alone; one that cannot, by its own clock or from the start, sends a full update of
    fewer epochs and then a classifier. A device with a single class, or no time left, sends no classifier
    (ours). `few_shot` has the settings of the classifier's training; all others are those of the full update.
    """

    name: ClassVar[str] = "full+few-shot"
    mixed_round_settings: ClassVar[Settings] = {}
    about: ClassVar[KindInfo] = KindInfo(
        "everything, and the classifier on a few samples of each class",
        "all parameters, and the classifier",
        "FedFSC: Shi 2025 (PhD thesis, Sheffield), chapter 4",
    )
    few_shot: Annotated[FewShot, Setting("Training of the classifier.", example={"shots": 5})] = field(
        default_factory=FewShot
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        few = self.few_shot
        if few.join_base or few.send_mean or few.codec or few.least_samples:
            raise ValueError("join_base, send_mean, codec and least_samples are for few-shot alone")

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """The cost of both updates, one after the other.

        Of the full update alone where only devices that fall back to fewer epochs do both. The session that
        computes features stays open during full training.
        """
        full = self.work(workload)
        if self.few_shot.infeasible_reason(workload):
            return predict(profile, full, self.name)
        full = replace(full, peak_bytes=full.peak_bytes + activation_bytes(workload, "forward"))
        if self.least:
            return predict(profile, full, self.name)
        return predict(profile, _after(self.few_shot.work(workload), full), self.name)

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        """Train the classifier first if it is always sent: the full update then knows what time is left."""
        head = {} if self.least else self._classifier(model, data, run)
        return replace(super().plan(model, data, run), beside=_sent(head, model.manifest))

    def update_of(self, result: TrainingResult, model: DeviceModel, data: LocalData, run: Run) -> Update:
        full = super().update_of(result, model, data, run)
        if not self.least or full.variant == self.variant:
            return full
        head = self._in_time(model, data, run)
        return replace(full, tensors={**full.tensors, **_sent(head, model.manifest)})

    def _in_time(self, model: DeviceModel, data: LocalData, run: Run) -> Tensors:
        try:
            return self._classifier(model, data, run)
        except OutOfTime:
            return {}

    def _classifier(self, model: DeviceModel, data: LocalData, run: Run) -> Tensors:
        if len(np.unique(data.y)) < 2:
            return {}
        return self.few_shot.train(model, data, replace(run, progress=lambda _: None)).tensors

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """The tensors of the full update, and a classifier with all of its rows or with none."""
        heads = (replace(spec, name=FEW_SHOT + spec.name, variable=True) for spec in head_specs(manifest))
        return (*super().expected(manifest), *heads)

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        rows = {name: len(value) for name, value in few_shot_head(update).items()}
        whole = {name: len(update[name]) for name in rows}
        if any(rows.values()) and rows != whole:
            name = next(name for name in rows if rows[name] != whole[name])
            return f"{FEW_SHOT}{name} has {rows[name]} rows, expected {whole[name]}, or none in all of them"
        return ""

    def site_refusal(self) -> str:
        return MERGES_MORE

    def start(self, model: RoundModel) -> Means:  # type: ignore[override]
        return Means(TensorMean(), TensorMean())

    def fold(self, state: Means, update: Update, weight: float) -> Means:  # type: ignore[override]
        head = few_shot_head(update.tensors)
        full = {name: v for name, v in update.tensors.items() if not name.startswith(FEW_SHOT)}
        sent = all(len(value) for value in head.values())
        classifiers = state.classifiers.add(head, 1.0) if sent else state.classifiers
        return Means(state.full.add(full, weight), classifiers)

    def finish(self, state: Means, model: RoundModel) -> KindResult:  # type: ignore[override]
        learnt = {FEW_SHOT + name: value for name, value in state.classifiers.mean().items()}
        has_anchor = any(isinstance(term, FscProx) and term.anchor == "few-shot" for term in self.terms)
        return KindResult(
            mean=state.full,
            num_examples=state.full.most,
            served_mean=state.classifiers,
            aside=learnt if has_anchor and learnt else None,
        )


def _sent(head: Tensors, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """The classifier as it is sent: tensors without rows if there is no classifier."""
    none = {spec.name: np.empty((0, *spec.shape[1:]), np.float32) for spec in head_specs(manifest)}
    return {FEW_SHOT + name: head.get(name, empty) for name, empty in none.items()}


def _after(first: Work, then: Work) -> Work:
    """The work of both, with one download and one contribution."""
    return Work(
        passes=(*first.passes, *then.passes),
        peak_bytes=max(first.peak_bytes, then.peak_bytes),
        bytes_up=first.bytes_up + then.bytes_up,
        bytes_down=then.bytes_down,
    )
