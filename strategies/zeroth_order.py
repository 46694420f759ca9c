"""FedMeZO: inference-only updates; a round's seed down, `num_z` scalars up (thesis 000, section 4.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from broker.messages import Step
from models.engine import DeviceModel
from models.manifest import Manifest
from models.tensors import Tensors, TensorSpec
from profiles import Cost, DeviceProfile, Work, Workload, predict
from profiles.cost import activation_bytes

from . import directions, ranges
from .kind import MOST_LOSS, Contribution, Effect, Late, LocalData, RoundModel, Run, Usual
from .replaying import Along, perturb
from .workload import passes

WIRE_BYTES = 190
"""A contribution of two scalars on the wire, topic and all (measured; see docs/wire.md)."""


MOST_DIRECTIONS = 1024
"""A round's scalars stand in the offers of the next rounds, which are control messages."""


@dataclass(frozen=True)
class MeanScalars:
    """Weighted sums float64 (num_z,) of the projected gradients, and their weight; beside them those of
    earlier rounds, which are along other directions.
    """

    sums: NDArray[np.float64]
    weight: float = 0.0
    late: Mapping[Late, MeanScalars] = field(default_factory=dict)

    def add(self, projected: NDArray[np.float64], weight: float, late: Late | None) -> MeanScalars:
        if late is None:
            return replace(self, sums=self.sums + weight * projected, weight=self.weight + weight)
        theirs = self.late.get(late, MeanScalars(np.zeros_like(self.sums)))
        return replace(self, late={**self.late, late: theirs.add(projected, weight, None)})

    def means(self, now: Late) -> Iterator[tuple[Late, NDArray[np.float32], float]]:
        """Of each round, the earliest first and `now` last: the mean, and its share of the whole weight."""
        every = [*sorted(self.late.items(), key=lambda each: each[0].round), (now, self)]
        whole = sum(mean.weight for _, mean in every)
        for of, mean in every:
            if mean.weight:
                yield of, (mean.sums / mean.weight).astype(np.float32), mean.weight / whole


@dataclass(frozen=True)
class ZerothOrder(Usual):
    """Projected gradients along `num_z` directions that all devices of the round share.

    g_p = (L(w + eps z_p) - L(w - eps z_p)) / (2 eps) (equation 3), each loss the mean over the *whole* local
    data (section 4.2.2); the model moves by -lr * mean_p(g_p z_p) (algorithm 3). Algorithm 2 averages g_p
    over devices plainly; by n_k, as here, the step is that of the pooled data however it is divided. Scalars
    that come late are along directions that are known still: they are a step of their own, by their weight
    among all and the share that the task grants (FedBuff, Nguyen et al. 2022, algorithm 1).
    Defaults: num_z = 2 (section 4.2.1); eps = 1e-3 as in MeZO (the thesis names no figure).
    """

    name: ClassVar[str] = "zeroth-order"
    num_z: int = 2
    eps: float = 1e-3
    lr: float = 1e-2
    tunable: str = "all"
    generator: str = directions.GENERATOR

    def __post_init__(self) -> None:
        ranges.counts(MOST_DIRECTIONS, num_z=self.num_z)
        ranges.positive(eps=self.eps, lr=self.lr)
        ranges.tunable_set(self.tunable)
        directions.check_generator(self.generator)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """2 num_z forward passes over all samples; the memory of inference and a copy of the set."""
        graph = f"loss.{self.tunable}"
        samples = 2.0 * self.num_z * workload.samples
        held = 2 * workload.weights_bytes + 4 * workload.values(self.tunable)
        work = Work(
            passes=passes(workload, **{f"loss_{self.tunable}": samples}),
            peak_bytes=held + workload.samples * workload.sample_bytes + activation_bytes(workload, graph),
            bytes_up=WIRE_BYTES + 4 * max(0, self.num_z - 2),
            bytes_down=workload.download_bytes,
        )
        return predict(profile, work, self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
        probe, began = model.probe(self.tunable), run.clock()
        projected, losses = np.zeros(self.num_z, np.float32), []
        for p in range(self.num_z):
            pair = []
            for sign in (1, -1):
                perturb(probe.params, model.weights, Along(run.seed, p, sign * self.eps, self.generator))
                pair.append(probe.loss(data.x, data.y))
                run.pace(began, (2 * p + (sign < 0) + 1) / (2 * self.num_z))
            projected[p] = (pair[0] - pair[1]) / (2 * self.eps)
            losses.extend(pair)
        return Contribution(self.name, {"g": projected}, len(data), float(np.mean(losses)))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return (TensorSpec("g", (self.num_z,)),)

    def doubt(self, update: Tensors, num_examples: int) -> str:
        """Losses are from 0 to MOST_LOSS: no difference of two over eps or more is further from 0."""
        furthest, most = float(np.abs(update["g"]).max()), MOST_LOSS / self.eps
        if furthest <= most:
            return ""
        return f"a scalar is {furthest:.4g} away from 0, at most {most:.4g} is believed with eps {self.eps:g}"

    def start(self, model: RoundModel) -> MeanScalars:
        return MeanScalars(np.zeros(self.num_z))

    def fold(self, state: MeanScalars, contribution: Contribution, weight: float) -> MeanScalars:
        projected = contribution.tensors["g"].astype(np.float64)
        return state.add(projected, weight, contribution.late)

    def finish(self, state: MeanScalars, model: RoundModel) -> Effect:
        steps = tuple(
            Step(
                round=of.round,
                generator=self.generator,
                seed=of.seed,
                tunable=self.tunable,
                lr=self.lr,
                share=share * of.share,
                scalars=tuple(float(g) for g in mean),
            )
            for of, mean, share in state.means(Late(model.round, model.seed, 1.0))
        )
        weight = state.weight + sum(late.weight for late in state.late.values())
        return Effect(steps=steps, num_examples=weight)
