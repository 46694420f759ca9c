"""FedMeZO: devices only run inference; they get a seed and send `num_z` scalars.

Thesis 000, section 4.1.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, sqrt
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Work, Workload, predict
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.directions import directions
from device_runtime.strategies.directions.replaying import (
    GRID,
    ScalarMoment,
    ScaledDirection,
    Sizing,
    perturb,
    relative,
    unit,
)
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel
from device_runtime.strategies.interface.capabilities import (
    Comparable,
    ComparedAs,
    MergedAtSite,
    SendsScalars,
    Summable,
)
from device_runtime.strategies.interface.device_half import MOST_LOSS, Late, LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Strategy
from device_runtime.strategies.settings import Directions, Distance, Setting, TunableSet
from device_runtime.strategies.training.workload import passes

Scalars = NDArray[np.float64]
Chain: TypeAlias = "tuple[()] | tuple[float, Chain]"
"""A linked list of numbers, the latest first: adding one takes the same time however many there are."""


@dataclass(frozen=True)
class Mean:
    """Mean scalars float64 (num_z,) along the directions of round `of`, and their share of all weight."""

    of: Late
    scalars: Scalars
    share: float


@dataclass(frozen=True)
class MeanScalars:
    """The weighted sum float64 (num_z,) of projected gradients, and their weight.

    late: the same for earlier rounds, whose scalars are along other directions. squares: the mean square of
    each device's scalars, the latest first; None if `median` is not needed.
    """

    sums: Scalars
    weight: float = 0.0
    late: Mapping[Late, MeanScalars] = field(default_factory=dict)
    squares: Chain | None = None

    @classmethod
    def empty(cls, num_z: int, squares: bool = False) -> MeanScalars:
        """The state without scalars; `squares`: whether `median` will be needed."""
        return cls(np.zeros(num_z), squares=() if squares else None)

    @property
    def whole(self) -> float:
        """The weight of all scalars, late ones included; `weight` is of those in time."""
        return self.weight + sum(each.weight for each in self.late.values())

    def add(self, projected: Scalars, weight: float, late: Late | None) -> MeanScalars:
        if late is not None:
            theirs = self.late.get(late, MeanScalars.empty(len(self.sums))).add(projected, weight, None)
            return replace(self, late={**self.late, late: theirs})
        squares = self.squares
        if squares is not None:
            squares = (float(np.square(projected).mean()), squares)
        return replace(
            self, sums=self.sums + weight * projected, weight=self.weight + weight, squares=squares
        )

    @property
    def median(self) -> float:
        """The median over devices of the mean square of their scalars, of two the smaller; inf if unknown."""
        squares, rest = list[float](), self.squares
        while rest:
            square, rest = rest
            squares.append(square)
        return sorted(squares)[(len(squares) - 1) // 2] if squares else inf

    def means(self, now: Late) -> Iterator[Mean]:
        """The mean of each round that has scalars, the earliest first and `now` last."""
        for of, mean in [*sorted(self.late.items(), key=lambda each: each[0].round), (now, self)]:
            if mean.weight:
                yield Mean(of, mean.sums / mean.weight, mean.weight / self.whole)


WIRE_BYTES, AGAIN_BYTES = 190, 45
"""Bytes on the wire of a contribution of two scalars, and of a compact one that repeats an accepted one.

Topic included; both for a device whose name has eight letters (docs/wire.md).
"""


FEDMEZO: Mapping[str, Any] = {"sides": 2, "sizing": "absolute", "generator": directions.GENERATOR}
"""The thesis's settings; the defaults num_z = 2 and eps = 1e-3 are those of its section 4.2.1 too."""
MEASURED: Mapping[str, Any] = {
    "sides": 1,
    "sizing": "relative",
    "num_z": 4,
    "sampled": 0.1,
    "lr": 2e-2,
}
SAMPLED_COHORT_LR = 2e-3
"""The `lr` to use with MEASURED if only some devices take part in a round: fewer samples mean more noise."""


@dataclass(frozen=True)
class ZerothOrder(
    SendsScalars,
    Comparable,
    Summable,
    MergedAtSite,
    Strategy[MeanScalars],
    reveals="the slope of the loss along a few directions",
):
    """Devices send projected gradients g_p along `num_z` directions z_p that all devices of the round share.

    sides = 2: g_p = (L(w + eps u z_p) - L(w - eps u z_p)) / (2 eps) (equation 3), from 2 num_z losses.
    sides = 1: g_p = (L(w + eps u z_p) - L(w)) / eps, from num_z + 1 losses.
    u is the unit of length. Each loss is the mean over the *whole* local data (section 4.2.2). The model
    moves by -lr * u * mean_p(g_p z_p) (algorithm 3). Algorithm 2 averages g_p over devices without weights;
    with weights n_k, as here, the step is that of the pooled data, however it is divided.

    Late scalars are along directions that are still known. They make a step of their own, scaled by their
    weight among all and by the share that the task grants (FedBuff, Nguyen et al. 2022, algorithm 1).

    sizing = "absolute": u = 1, as in the thesis.
    sizing = "relative" (ours): u is the root mean square of the tuned weights, g_p is divided by its root
    mean square so far (`ScalarMoment`), and the mean of n scalars is multiplied by sqrt(n). An average round
    then moves a weight by lr times the weights' size, in root mean square, whatever the network, loss and n.
    sampled (ours): the share of its samples on which a device measures the losses of a round, drawn again for
    each round by the device's own randomness.

    Defaults are the thesis's, except that directions are of signs; `MEASURED` learns more from as many passes
    (docs/zeroth-order.md).
    """

    name: ClassVar[str] = "zeroth-order"
    compared_as: ClassVar[ComparedAs | None] = "scalars"
    about: ClassVar[KindInfo] = KindInfo(
        "nothing: measures the loss at the base and along random directions",
        "a few scalars",
        "FedMeZO: Bernier 2024 (MSc thesis, Concordia), chapter 4",
    )
    num_z: Directions = 2
    eps: Distance = 1e-3
    lr: Annotated[float, Setting("Learning rate of the step of a round.", example=1e-3, more_than=0)] = 1e-2
    tunable: TunableSet = "all"
    generator: directions.RandomDirections = directions.RADEMACHER
    sides: Annotated[
        Literal[1, 2],
        Setting("Measured losses of a direction: 1 (and the base's), or 2 (forth and back).", example=1),
    ] = 2
    sizing: Annotated[
        Sizing,
        Setting("Unit of `eps` and `lr`: 1, or the size of the weights and of past scalars.", "relative"),
    ] = "absolute"
    beta: Annotated[
        float,
        Setting("Decay of the mean of past scalars, for relative steps.", 0.9, at_least=0, less_than=1),
    ] = 0.99
    sampled: Annotated[
        float,
        Setting("Share of its samples that a device measures in a round.", 0.1, more_than=0, at_most=1),
    ] = 1.0

    def __post_init__(self) -> None:
        ranges.check(self)

    @property
    def scalars(self) -> int:
        return self.num_z

    @property
    def losses(self) -> int:
        """How many losses a device measures: passes over its data, or over the part that is `sampled`."""
        return 2 * self.num_z if self.sides == 2 else self.num_z + 1

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """`losses` forward passes over the round's samples; memory of inference and a copy of the set."""
        graph = f"loss.{self.tunable}"
        samples = float(self.losses * self._count(workload.samples))
        memory_bytes = 2 * workload.weights_bytes + 4 * workload.values(self.tunable)
        work = Work(
            passes=passes(workload, **{f"loss_{self.tunable}": samples}),
            peak_bytes=memory_bytes
            + workload.samples * workload.sample_bytes
            + activation_bytes(workload, graph),
            bytes_up=WIRE_BYTES + 4 * max(0, self.num_z - 2),
            bytes_down=workload.download_bytes,
        )
        return predict(profile, work, self.name)

    def repeat_upload_bytes(self, first: int) -> int:
        return AGAIN_BYTES + first - WIRE_BYTES

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        losses, began = [], run.clock()
        for loss in self._measured(model, self._drawn(data, run), run):
            losses.append(loss)
            run.pace(began, len(losses) / self.losses)
        ups, downs = losses[:: self.sides], losses[1 :: self.sides]
        if self.sides == 1:
            ups, downs = losses[1:], losses[:1] * self.num_z
        projected = [(up - down) / (self.sides * self.eps) for up, down in zip(ups, downs, strict=True)]
        scalars = np.array(projected, np.float32)
        return Update(self.name, {"g": scalars}, len(data), float(np.mean(losses)))

    def _drawn(self, data: LocalData, run: Run) -> LocalData:
        """The samples on which this round's losses are measured."""
        if self.sampled == 1:
            return data
        rows = np.sort(run.rng().permutation(len(data))[: self._count(len(data))])
        return LocalData(data.x[rows], data.y[rows])

    def _count(self, samples: int) -> int:
        return ceil(self.sampled * samples)

    def _measured(self, model: DeviceModel, data: LocalData, run: Run) -> Iterator[float]:
        """The losses in order: forth and back along each direction, or at the base and then along each."""
        probe = model.probe(self.tunable)
        length = self.eps * unit(model.weights, model.manifest.specs(self.tunable), self.sizing)
        if self.sides == 1:
            yield probe.loss(data.x, data.y)
        for p in range(self.num_z):
            for sign in (1, -1)[: self.sides]:
                perturb(
                    probe.params, model.weights, ScaledDirection(run.seed, p, sign * length, self.generator)
                )
                yield probe.loss(data.x, data.y)

    def longest_scalars(self, base_length: float, values: int) -> float:
        """As `Comparable.longest_scalars`; inf for relative sizing.

        The step of n scalars on `values` weights is lr |g| sqrt(values) / n long, because random directions
        are nearly at right angles.
        """
        if self.sizing == "relative":
            return inf
        return base_length * self.num_z / (self.lr * sqrt(max(1, values)))

    @property
    def forwarded_as(self) -> Literal["update", "scalars", ""]:
        return "scalars"

    def at_site(self, base: Tensors, manifest: Manifest) -> tuple[ZerothOrder, float]:
        """The kind with which a site's devices measure the same as they would for the aggregator above.

        Only the aggregator above knows the scale of relative scalars, so the site's are absolute, with an
        `eps` of the same length. The factor is a power of two.
        """
        eps = self.eps * unit(base, manifest.specs(self.tunable), self.sizing)
        return replace(self, sizing="absolute", eps=eps), eps / self.eps

    def site_refusal(self) -> str:
        return "only the aggregator above knows the length of its step" if self.sizing == "relative" else ""

    def changes(self, manifest: Manifest) -> tuple[str, ...]:
        return tuple(manifest.names(self.tunable))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return (TensorSpec("g", (self.num_z,)),)

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Reject scalars that no two losses from 0 to MOST_LOSS can give, over a distance of eps or more."""
        furthest, most = float(np.abs(update["g"]).max()), MOST_LOSS / self.eps
        if furthest <= most:
            return ""
        return f"a scalar is {furthest:.4g} away from 0, at most {most:.4g} is accepted with eps {self.eps:g}"

    def start(self, model: RoundModel) -> MeanScalars:
        first = self.sizing == "relative" and not ScalarMoment.of(model.memory).usual
        return MeanScalars.empty(self.num_z, squares=first)

    def fold(self, state: MeanScalars, update: Update, weight: float) -> MeanScalars:
        projected = update.tensors["g"].astype(np.float64)
        return state.add(projected, weight, update.late)

    def finish(self, state: MeanScalars, model: RoundModel) -> KindResult:
        means = list(state.means(Late(model.round, model.seed, 1.0)))
        length = self.lr * unit(model.weights, model.manifest.specs(self.tunable), self.sizing)
        if self.sizing == "absolute":
            steps = tuple(self._step(mean, mean.scalars, length) for mean in means)
            return KindResult(steps=steps, num_examples=state.whole)
        moment = ScalarMoment.of(model.memory)
        for mean in means:
            moment = moment.after(float(np.square(mean.scalars).mean()), self.beta, state.median)
        steps = tuple(
            self._step(mean, relative(mean.scalars, moment.usual), length * sqrt(len(mean.scalars)) / GRID)
            for mean in means
        )
        return KindResult(steps=steps, num_examples=state.whole, memory=moment.kept())

    def _step(self, mean: Mean, scalars: Scalars, lr: float) -> Step:
        return Step(
            round=mean.of.round,
            generator=self.generator,
            seed=mean.of.seed,
            tunable=self.tunable,
            lr=lr,
            share=mean.share * mean.of.share,
            scalars=tuple(scalars.astype(np.float32).tolist()),
        )
