"""A kind of update for benchmarks alone: a device sends back the tensors that it was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Work, Workload, predict
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import Strategy
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import upload_bytes


@dataclass(frozen=True)
class Echo(Strategy[TensorMean]):
    """No computation; one upload of all tensors."""

    name: ClassVar[str] = "echo"

    def infeasible_reason(self, workload: Workload) -> str:
        return ""

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        sent = upload_bytes(workload.values("all"), workload.tensors["all"])
        work = Work(passes=(), peak_bytes=2 * workload.weights_bytes, bytes_up=sent, bytes_down=sent)
        return predict(profile, work, self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        weights = model.weights
        tensors = {name: weights[name] for name in model.manifest.names("all")}
        return Update(self.name, tensors, 1, float("nan"))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return manifest.specs("all")

    def start(self, model: RoundModel) -> TensorMean:
        return TensorMean()

    def fold(self, state: TensorMean, update: Update, weight: float) -> TensorMean:
        return state.add(update.tensors, weight)

    def finish(self, state: TensorMean, model: RoundModel) -> KindResult:
        return KindResult(mean=state, num_examples=max(state.weights.values(), default=0.0))


def register() -> None:
    """Makes the kind known to tasks and devices of this process."""
    registry.register(Echo)
