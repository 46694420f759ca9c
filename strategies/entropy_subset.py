"""FedFT-EDS: fine-tune the upper part on the samples of highest entropy (thesis 002, algorithm 6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from models.engine import DeviceModel
from models.manifest import Manifest
from models.optimizer import Sgd
from models.softmax import entropy
from models.tensors import TensorSpec
from profiles import Cost, DeviceProfile, Workload, predict

from . import local_training, ranges
from .kind import Contribution, Effect, LocalData, RoundModel, Run, Usual
from .tensor_mean import TensorMean
from .workload import training_work


@dataclass(frozen=True)
class EntropySubset(Usual):
    """The upper part, on the share of local samples that the model is least sure of.

    `shares` are tried from the largest down; a device takes the first that it can afford. `rho` is the
    temperature of the hardened softmax softmax(z / rho). E = 5, SGD lr 0.1, momentum 0.5 and the level `mid`
    as in section 6.5. Ours: no pre-training phase of its own (the offer's base model stands for it), and the
    extractor goes on learning where other kinds of the round train it.
    """

    name: ClassVar[str] = "entropy-subset"
    shares: tuple[float, ...] = (0.5, 0.25, 0.1)
    rho: float = 0.1
    epochs: int = 5
    lr: float = 0.1
    momentum: float = 0.5
    weight_decay: float = 0.0
    batch: int = 64
    tunable: str = "mid"

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"shares are {self.shares}, expected one or more in (0, 1]")
        ranges.counts(epochs=self.epochs, batch=self.batch)
        ranges.positive(rho=self.rho, lr=self.lr)
        ranges.not_negative(weight_decay=self.weight_decay)
        ranges.momentum(self.momentum)
        ranges.tunable_set(self.tunable)

    @property
    def share(self) -> float:
        return self.shares[0]

    @property
    def form(self) -> str:
        return f"{self.share:.0%}"

    def variants(self) -> tuple[EntropySubset, ...]:
        return tuple(replace(self, shares=(share,)) for share in sorted(self.shares, reverse=True))

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        n = workload.samples
        trained = self._count(n) * self.epochs
        work = training_work(workload, self.tunable, trained, scored=n, batch=self.batch)
        return predict(profile, work, self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
        plan = self.plan(model, data)
        trained = local_training.train(model, data, plan, run)
        return Contribution(self.name, trained.tensors, len(plan.indices), trained.loss)

    def plan(self, model: DeviceModel, data: LocalData) -> local_training.Epochs:
        chosen = self.select(model.logits(data.x))
        sgd = Sgd(self.lr, self.momentum, self.weight_decay)
        return local_training.Epochs(sgd, self.epochs, self.batch, chosen, self.tunable)

    def select(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """Indices of the `share` of samples with the highest hardened entropy, highest first.

        logits: (n, classes); equations 6.8 and 6.9. Equal entropies keep the order of the data.
        """
        scores = entropy(logits / np.float32(self.rho))
        order = np.argsort(-scores, kind="stable")
        return order[: self._count(len(logits))].astype(np.int64)

    def _count(self, samples: int) -> int:
        return ceil(self.share * samples)

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return (*manifest.specs(self.tunable), *manifest.statistics(self.tunable))

    def start(self, model: RoundModel) -> TensorMean:
        return TensorMean()

    def fold(self, state: TensorMean, contribution: Contribution, weight: float) -> TensorMean:
        return state.add(contribution.tensors, weight)

    def finish(self, state: TensorMean, model: RoundModel) -> Effect:
        """The mean of the upper parts, weighted by the number of *selected* samples (equation 6.11)."""
        return Effect(mean=state, num_examples=max(state.weights.values(), default=0.0))
