"""Local training: mini-batch epochs on a tunable set, and plans to train many devices at once.

All kinds that train a device's model use `train`. A kind that describes its training (`HasTrainingPlan`,
`TrainsHead`, `TakesFeatures`) lets the simulation train many devices together.

Partial epochs let a slow device train fewer local epochs than others, for any kind with `epochs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, Vector
from device_runtime.models.engines.base import NO_EXTRAS, DeviceModel, Gradients
from device_runtime.models.training.optimizer import Optimizer, Privacy, PrivateGradients, Sgd, clip
from device_runtime.strategies.interface.capabilities import EndsEarly, listed_variant
from device_runtime.strategies.interface.device_half import (
    NO_TENSORS,
    LocalData,
    OutOfTime,
    Run,
    Update,
)
from device_runtime.strategies.interface.kind import Strategy, variant_named
from device_runtime.strategies.settings import MOST, LocalEpochs, Setting

Indices = NDArray[np.int64]


class StartedTerm(Protocol):
    """A gradient term during one training."""

    def add(self, params: Flat, grads: Flat) -> None:
        """Add the term's gradient at `params` to `grads`, in place; called in every step."""


class GradientTerm(Protocol):
    """A term that adds a gradient which follows from the parameters alone, as a proximal term does."""

    def start(self, params: Flat) -> StartedTerm:
        """The term for one training of these parameters. Raises TensorError if it does not fit them."""


@dataclass(frozen=True)
class TrainingPlan:
    """`epochs` epochs over `indices`, reshuffled in each, in batches of `batch` samples.

    clip_norm: largest norm of a step's whole gradient, gradient terms included; 0: no limit.
    privacy: clips each sample's gradient instead, and draws batches as the accountants assume:
    ceil(n / batch) an epoch, each of which holds any sample with probability batch / n.
    gradients: terms that add to each step's gradient.
    extras: gives the objective's inputs for the samples at these indices, in addition to x and y.
    least: the fewest epochs that may be sent. If 1 or more, and the clock shows that not all `epochs` fit
    before the deadline, training ends after the last whole epoch that does; 0: all epochs or none.
    beside: what the kind has measured before training, and sends beside what is trained.
    """

    optimizer: Optimizer
    epochs: int
    batch: int
    indices: Indices
    tunable: str = "all"
    objective: str = "train"
    extras: Callable[[Indices], Tensors] = lambda _: NO_EXTRAS
    gradients: tuple[GradientTerm, ...] = ()
    clip_norm: float = 0.0
    privacy: Privacy | None = None
    least: int = 0
    beside: Tensors = field(default_factory=lambda: NO_TENSORS, repr=False)


@dataclass(frozen=True)
class TrainingResult:
    """The tunable set and its normalisation statistics after training by a plan.

    `loss` is the mean over the last whole epoch; `epochs` is how many were done.
    """

    plan: TrainingPlan
    tensors: Tensors
    loss: float
    epochs: int


def train(model: DeviceModel, data: LocalData, plan: TrainingPlan, run: Run) -> TrainingResult:
    """Train from the weights that the model holds.

    Memory in addition to the engine's: the optimiser's state, and a copy of the set where training may end
    early. The returned tensors are the trainer's own buffers. Raises OutOfTime by the device's own clock, and
    TensorError for a gradient term that does not fit.
    """
    trainer = _trainer(model, plan)
    params, grads = trainer.params, trainer.grads
    terms = [term.start(params) for term in plan.gradients]
    steps = plan.optimizer.start(params.vector)
    budget = _EpochBudget(plan, run, trainer)
    rng, loss = _order(plan, run), 0.0
    for epoch in range(plan.epochs):
        total, count = 0.0, 0
        for batch, done in _batches(plan, rng):
            total += trainer.loss_and_grads(data.x[batch], data.y[batch], plan.extras(batch)) * len(batch)
            count += len(batch)
            for term in terms:
                term.add(params, grads)
            if plan.clip_norm:
                clip(grads.vector, plan.clip_norm)
            steps.step(params.vector, grads.vector)
            if budget.reached(epoch + done) and done < 1:
                budget.restore()
                return TrainingResult(plan, {**params.views, **trainer.statistics.views}, loss, epoch)
        loss = total / max(count, 1)
        if budget.epochs == epoch + 1:
            break
        budget.keep(epoch + 1)
    return TrainingResult(plan, {**params.views, **trainer.statistics.views}, loss, budget.epochs)


def train_by_plan(kind: HasTrainingPlan, model: DeviceModel, data: LocalData, run: Run) -> Update:
    """Makes a kind's update by its own plan. Raises as `train` does."""
    return kind.update_of(train(model, data, kind.plan(model, data, run), run), model, data, run)


class _EpochBudget:
    """The epochs that fit in the time; keeps the parameters of the last whole epoch that may be sent."""

    def __init__(self, plan: TrainingPlan, run: Run, trainer: Gradients) -> None:
        self.epochs = self._planned = plan.epochs
        self._least = plan.least if 0 < plan.least < plan.epochs else plan.epochs
        self._run, self._began = run, run.clock()
        self._vectors = (trainer.params.vector, trainer.statistics.vector)
        self._copies: tuple[Vector, ...] = ()

    def reached(self, done: float) -> bool:
        """Whether training ends here, `done` epochs after its start. Raises OutOfTime if too few are done."""
        try:
            self._pace(done)
        except OutOfTime:
            if self.epochs == self._least:
                raise
            self.epochs = max(self._least, int(done))
            if done < self.epochs:
                self._pace(done)
        return done >= self.epochs

    def _pace(self, done: float) -> None:
        self._run.pace(self._began, done / self.epochs, self.epochs / self._planned)

    def keep(self, done: int) -> None:
        """Copy the parameters after `done` whole epochs, if they could be the last."""
        if not self._least <= done < self.epochs:
            return
        self._copies = self._copies or tuple(np.empty_like(vector) for vector in self._vectors)
        for copy, vector in zip(self._copies, self._vectors, strict=True):
            np.copyto(copy, vector)

    def restore(self) -> None:
        """Put the kept parameters back."""
        for copy, vector in zip(self._copies, self._vectors, strict=True):
            np.copyto(vector, copy)


F = TypeVar("F", bound=Callable[..., Update])


def follows_plan(train: F) -> F:
    """Mark a kind's `train` whose update follows from its `plan`, `head_training` or `from_features`.

    A simulation may then train many devices together, without calling it. A kind that overrides a marked
    `train` is trained by its own.
    """
    train.follows_plan = True  # type: ignore[attr-defined]
    return train


def is_planned(kind: object) -> bool:
    """Whether a kind's `train` is marked by `follows_plan`."""
    return getattr(getattr(type(kind), "train", None), "follows_plan", False)


@runtime_checkable
class HasTrainingPlan(Protocol):
    """A kind that trains by a plan; a simulation does the plans of many devices at once."""

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        """The plan for `train`; `model` holds the base."""

    def update_of(self, result: TrainingResult, model: DeviceModel, data: LocalData, run: Run) -> Update:
        """The update that the result of the plan makes; `model` holds the base."""


def plan_batches(plan: TrainingPlan, run: Run) -> tuple[list[Indices], int]:
    """The batches of `train`, and how many come before the last epoch; of a private plan to be drawn once."""
    rng = _order(plan, run)
    epochs = [[batch for batch, _ in _batches(plan, rng)] for _ in range(plan.epochs)]
    every = [batch for epoch in epochs for batch in epoch]
    return every, len(every) - len(epochs[-1])


def usual_batch(plan: TrainingPlan) -> int:
    """Samples of most steps, as a trainer is told them; 0: not known."""
    full = len(plan.indices) >= plan.batch and plan.privacy is None
    return plan.batch if full else 0


def _trainer(model: DeviceModel, plan: TrainingPlan) -> Gradients:
    trainer = model.trainer(plan.tunable, plan.objective, usual_batch(plan))
    if plan.privacy is None:
        return trainer
    graph = model.manifest.graphs[f"{plan.objective}.{plan.tunable}"]
    rows = {extra.name for extra in graph.extras if extra.per_sample}
    return PrivateGradients(trainer, plan.privacy, min(plan.batch, len(plan.indices)), rows)


def _order(plan: TrainingPlan, run: Run) -> np.random.Generator:
    """The generator of a plan's batches, which is as secret as that of the noise if training is private."""
    return run.rng() if plan.privacy is None else plan.privacy.sampling()


def _batches(plan: TrainingPlan, rng: np.random.Generator) -> Iterator[tuple[Indices, float]]:
    """The batches of one epoch, each with the share of the epoch that is done after it."""
    samples = len(plan.indices)
    if plan.privacy is None:
        order = rng.permutation(plan.indices)
        for start in range(0, samples, plan.batch):
            batch = order[start : start + plan.batch]
            yield batch, (start + len(batch)) / samples
        return
    steps = -(-samples // plan.batch)
    for step in range(steps):
        chosen = rng.random(samples) < plan.batch / samples
        yield plan.indices[chosen], (step + 1) / steps


@dataclass(frozen=True)
class HeadTraining:
    """Training of the classifier alone, on features: a step for each batch, from the base's head.

    `batches` are indices into the device's samples. The contribution's loss is the mean from step `counted`
    on. `clip_norm`: the largest norm of a step's gradient; 0: no limit.
    """

    batches: Sequence[NDArray[np.integer[Any]]]
    optimizer: Sgd
    counted: int = 0
    clip_norm: float = 0.0


@runtime_checkable
class TrainsHead(Protocol):
    """A kind that may train the classifier alone: features once, then the steps of `head_training`."""

    def trains_head(self, manifest: Manifest) -> bool:
        """Whether `train` does only that for this bundle."""

    def head_training(self, y: NDArray[np.int64], run: Run) -> HeadTraining:
        """The steps for a device with labels y (n,); batches are drawn from `run` as `train` draws them."""


def takes_features(kind: object, manifest: Manifest) -> bool:
    """Whether an update follows from the features of samples, by `TakesFeatures` or `TrainsHead`."""
    if not is_planned(kind):
        return False
    return isinstance(kind, TakesFeatures) or (isinstance(kind, TrainsHead) and kind.trains_head(manifest))


@runtime_checkable
class TakesFeatures(Protocol):
    """A kind whose `train` needs only the features of all samples from the model."""

    def from_features(
        self, features: NDArray[np.float32], y: NDArray[np.int64], manifest: Manifest
    ) -> Update:
        """The update that `train` would make; features (n, width), y (n,)."""


K = TypeVar("K", bound="PartialEpochs")
_EPOCHS = re.compile(r"(?P<rest>.*?) ?epochs=(?P<epochs>[1-9][0-9]{0,6})")


@dataclass(frozen=True)
class PartialEpochs(EndsEarly, Strategy[Any]):
    """Base of kinds that train in epochs: adds variants of fewer epochs to those that the kind has.

    With `reduced_epochs > 0` a device that cannot afford `epochs` trains that many: FedAvg+, FedProx+,
    MOON+ (thesis 002, section 4.5.2: stragglers run E_r = 1 epochs instead of being dropped). With `graded`
    (ours) it trains half of `epochs`, a quarter, .., at least `reduced_epochs` or one. With `drawn_epochs`
    it trains a number that is drawn anew in each round, from 1 to the most that it can afford (FedProx+ of
    thesis 002, section 5.6); it counts as busy for the most. A device that began all epochs and sees by its
    clock that they do not fit ends after the last whole epoch that does, if it has done `least_epochs` (0:
    as `reduced_epochs`). With `weigh_epochs` (ours) an update of a tenth of the epochs weighs a tenth: it has
    moved that much less, and would hold back the mean of all.
    """

    epochs: LocalEpochs = 10
    reduced_epochs: Annotated[
        int,
        Setting(
            "Fewer epochs for a device that cannot afford `epochs`; 0: no such variant.",
            example=1,
            unit="epochs",
            at_least=0,
            at_most=MOST,
        ),
    ] = field(default=0, kw_only=True)
    graded: Annotated[
        bool,
        Setting(
            "Whether a slow device trains half of the epochs, a quarter, .., as many as it can afford; at "
            "least `reduced_epochs`, or one.",
            example=True,
        ),
    ] = field(default=False, kw_only=True)
    drawn_epochs: Annotated[
        bool,
        Setting(
            "Whether a slow device trains a number of epochs drawn anew in each round, from 1 to the most it "
            "can afford.",
            example=True,
        ),
    ] = field(default=False, kw_only=True)
    least_epochs: Annotated[
        int,
        Setting(
            "Epochs after which training may end early when time runs out; 0: as `reduced_epochs`.",
            example=2,
            unit="epochs",
            at_least=0,
            at_most=MOST,
        ),
    ] = field(default=0, kw_only=True)
    weigh_epochs: Annotated[
        bool,
        Setting("Whether an update of fewer epochs weighs less, in proportion to them.", example=True),
    ] = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reduced_epochs", "least_epochs"):
            if getattr(self, name) > self.epochs:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 to {self.epochs}, the epochs")

    @property
    def variant(self) -> str:
        return f"epochs={self.epochs}" if self.reduced_epochs == self.epochs else ""

    @property
    def least(self) -> int:
        """The epochs after which training may end early; 0 if it may not."""
        least = self.least_epochs or self._fewest
        return least if least < self.epochs else 0

    @property
    def _fewest(self) -> int:
        """The fewest epochs that a device may choose to train; 0 if it must train all."""
        return self.reduced_epochs or int(self.graded or self.drawn_epochs)

    def variants(self: K) -> tuple[K, ...]:
        if self._fewest in (0, self.epochs):
            return (self,)
        forms = [replace(self, reduced_epochs=0, graded=False, drawn_epochs=False, least_epochs=self.least)]
        if self.drawn_epochs:
            return *forms, *(self._of(epochs) for epochs in range(self.epochs - 1, 0, -1))
        epochs = self.epochs // 2
        while self.graded and epochs > self._fewest:
            forms.append(self._of(epochs))
            epochs //= 2
        return *forms, self._of(self._fewest)

    def ended_variant(self: K, name: str) -> K | None:
        """Training may have ended early after any number of epochs. Raises KindError."""
        ended = _EPOCHS.fullmatch(name)
        if ended and 0 < self.least <= (epochs := int(ended["epochs"])) < self.epochs:
            return cast(K, listed_variant(self, ended["rest"])).ended(epochs)
        return None

    def stopped(self: K, share: float) -> K | None:
        """The variant of the whole epochs done after this share of the work; None if they are too few."""
        whole = int(self.epochs * share + 1e-9)
        return self.ended(whole) if 0 < self.least <= whole else None

    def ended(self: K, epochs: int) -> K:
        """The variant to send if training ended after `epochs` epochs."""
        return self if epochs >= self.epochs else self._of(epochs)

    def weight(self, update: Update) -> float:
        """The update's samples, times its share of `epochs` with `weigh_epochs`."""
        weight = super().weight(update)
        if not self.weigh_epochs:
            return weight
        form = cast(PartialEpochs, variant_named(self, update.variant))
        return weight * form.epochs / self.epochs

    def epochs_in(self, run: Run) -> int:
        """The number of epochs to train in this round."""
        return 1 + int(run.rng().integers(self.epochs)) if self.drawn_epochs else self.epochs

    def _of(self: K, epochs: int) -> K:
        return replace(self, epochs=epochs, reduced_epochs=epochs, graded=False, least_epochs=0)
