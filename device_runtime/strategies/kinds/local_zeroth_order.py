"""DistMeZO-naive: the baseline of FedMeZO, with local zeroth-order steps.

Thesis 000, section 4.1.2 and figure 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, GraphPass, Work, Workload, predict
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.directions import directions
from device_runtime.strategies.directions.replaying import ScaledDirection, move, perturb
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import Comparable, MergedAtSite, Summable, TakesCodec
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Strategy
from device_runtime.strategies.settings import Directions, Distance, Setting, TunableSet
from device_runtime.strategies.training.workload import upload_bytes


@dataclass(frozen=True)
class LocalZerothOrder(
    TakesCodec,
    Comparable,
    Summable,
    MergedAtSite,
    Strategy[TensorMean],
    reveals="a change of weights along a few directions",
):
    """Each device takes `steps` MeZO steps along its own directions; the aggregator averages the weights.

    A step is w -= lr * mean_p(g_p z_p), g_p = (L(w + eps z_p) - L(w - eps z_p)) / (2 eps) over the whole
    local data, as in `zeroth-order`. The thesis does not name the number of steps. All weights are sent.
    """

    name: ClassVar[str] = "local-zeroth-order"
    about: ClassVar[KindInfo] = KindInfo(
        "everything, by zeroth-order steps along random directions of its own",
        "all parameters",
        "DistMeZO: Bernier 2024 (MSc thesis, Concordia), section 4.1.2",
    )
    steps: Annotated[int, Setting("Steps in a round.", 20, "steps", at_least=1, at_most=ranges.MOST)] = 10
    num_z: Directions = 2
    eps: Distance = 1e-3
    lr: Annotated[float, Setting("Learning rate of a step.", example=1e-3, more_than=0)] = 1e-2
    tunable: TunableSet = "all"
    generator: directions.RandomDirections = directions.GENERATOR

    def __post_init__(self) -> None:
        ranges.check(self)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """2 num_z forward passes of all samples a step; memory of inference and two copies of the set."""
        name = f"loss.{self.tunable}"
        values, samples = workload.values(self.tunable), workload.samples
        memory_bytes = 2 * workload.weights_bytes + 2 * 4 * values + samples * workload.sample_bytes
        work = Work(
            passes=(GraphPass(name, 2.0 * self.num_z * self.steps * samples, workload.graph(name).flops),),
            peak_bytes=memory_bytes + activation_bytes(workload, name),
            bytes_up=upload_bytes(values, workload.tensors[self.tunable], self.codec),
            bytes_down=workload.download_bytes,
        )
        return predict(profile, work, self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        probe = model.probe(self.tunable)
        start, rng, began = Flat(probe.params.specs), run.rng(), run.clock()
        start.load(model.weights)
        losses: list[float] = []
        for _ in range(self.steps):
            seed = int(rng.integers(1 << 53))
            projected = []
            for p in range(self.num_z):
                pair = []
                for sign in (1, -1):
                    perturb(
                        probe.params, start.views, ScaledDirection(seed, p, sign * self.eps, self.generator)
                    )
                    pair.append(probe.loss(data.x, data.y))
                    run.pace(began, (len(losses) + len(pair)) / (2 * self.num_z * self.steps))
                projected.append((pair[0] - pair[1]) / (2 * self.eps))
                losses.extend(pair)
            rate = -self.lr / self.num_z
            move(
                start.vector,
                [ScaledDirection(seed, p, rate * g, self.generator) for p, g in enumerate(projected)],
            )
        return Update(self.name, start.views, len(data), float(np.mean(losses)))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return manifest.specs(self.tunable)

    def site_refusal(self) -> str:
        return ""

    def start(self, model: RoundModel) -> TensorMean:
        return TensorMean()

    def fold(self, state: TensorMean, update: Update, weight: float) -> TensorMean:
        return state.add(update.tensors, weight)

    def finish(self, state: TensorMean, model: RoundModel) -> KindResult:
        return KindResult(mean=state, num_examples=state.most)
