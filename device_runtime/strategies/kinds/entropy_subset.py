"""FedFT-EDS: fine-tunes the upper part on the samples of highest entropy (thesis 002, algorithm 6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.heads import entropy
from device_runtime.profiles import Work, Workload
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import SelectsSamples
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Settings, variant_named
from device_runtime.strategies.settings import MOST, LocalEpochs, Setting, TunableSet, WeightDecay

from .fedavg import FedAvg


@dataclass(frozen=True)
class EntropySubset(FedAvg, SelectsSamples, by_class=True, refused=("terms.dp-sgd",)):
    """Trains the upper part on the share of local samples that the model is least sure of (FedFT-EDS).

    shares: a device takes the largest that it can afford. If `graded`, forms that train on more samples, over
    all epochs, come first. rho: the temperature of the hardened softmax softmax(z / rho). select="random"
    draws as many samples in each round instead (FedFT-RDS); a share of 1 is FedFT-ALL. E = 5, SGD lr 0.1 and
    momentum 0.5 are as in section 6.5. The thesis splits after level mid, so that its upper part is the set
    `up`. The default `mid`, from level mid on, is ours: every bundle has it. weigh: the mean is weighted by
    the number of *selected* samples (equation 6.11), or with "local" (ours) by all local samples, so that a
    device weighs the same as with a full update. least_samples (ours): a form that would train on fewer
    samples, on a device that has more, is unfit: a few samples teach no more than their class means. Ours
    too: there is no pre-training phase (the offer's base model takes its place), and the extractor goes on
    learning where other kinds of the round train it.
    """

    name: ClassVar[str] = "entropy-subset"
    about: ClassVar[KindInfo] = KindInfo(
        "the upper part, on the samples that the model is least sure of",
        "the upper part",
        "FedFT-EDS: Shi 2025 (PhD thesis, Sheffield), section 6.4",
    )
    mixed_round_settings: ClassVar[Settings] = {
        "least_samples": 10,
        "graded": True,
        "weigh_epochs": True,
    }
    epochs: LocalEpochs = 5
    weight_decay: WeightDecay = 0.0
    shares: Annotated[
        tuple[float, ...],
        Setting(
            "Shares of the local samples; a device trains on the largest that it can afford.",
            example=(0.5, 0.2),
            more_than=0,
            at_most=1,
        ),
    ] = (0.5, 0.25, 0.1)
    rho: Annotated[
        float, Setting("Temperature of the softmax whose entropy is measured.", example=0.1, more_than=0)
    ] = 0.1
    tunable: TunableSet = "mid"
    select: Annotated[
        Literal["entropy", "random"],
        Setting("Which samples: those of highest entropy, or drawn anew each round.", example="random"),
    ] = "entropy"
    least_samples: Annotated[
        int,
        Setting(
            "Fewest samples that a form trains on, where the device has as many; 0: any.",
            10,
            "samples",
            at_least=0,
            at_most=MOST,
        ),
    ] = 0
    weigh: Annotated[
        Literal["selected", "local"],
        Setting("What an update counts as: the samples selected, or all on the device.", example="local"),
    ] = "selected"

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("shares is empty, expected one or more")
        percents = [f"{share:.0%}" for share in self.shares]
        if len(set(percents)) < len(percents):
            raise ValueError(f"shares are {', '.join(percents)}: forms are named by whole percents")
        super().__post_init__()

    @property
    def trained(self) -> str:
        return self.tunable

    @property
    def share(self) -> float:
        return self.shares[0]

    @property
    def selected_share(self) -> float:
        return self.share

    @property
    def variant(self) -> str:
        return f"{self.share:.0%} {super().variant}".rstrip()

    def variants(self) -> tuple[EntropySubset, ...]:
        by_share = [replace(self, shares=(share,)) for share in sorted(self.shares, reverse=True)]
        forms = [form for subset in by_share for form in super(EntropySubset, subset).variants()]
        return tuple(sorted(forms, key=lambda form: -form.share * form.epochs) if self.graded else forms)

    def infeasible_reason(self, workload: Workload) -> str:
        count, samples = self._count(workload.samples), workload.samples
        if count < min(self.least_samples, samples):
            return f"would train on {count} of {samples} samples, expected {self.least_samples} or more"
        return super().infeasible_reason(workload)

    def work(self, workload: Workload) -> Work:
        n = workload.samples
        return self.work_on(workload, self._count(n), n if self._scores else 0)

    def weight(self, update: Update) -> float:
        selected = super().weight(update)
        if self.weigh == "selected":
            return selected
        return selected / capabilities.selected_share(variant_named(self, update.variant))

    def chosen(self, model: DeviceModel, data: LocalData, run: Run) -> NDArray[np.int64]:
        """The samples to train on; a random draw uses other random bits than the order of training."""
        if self._scores:
            return self.least_sure(model.logits(data.x))
        if self.share == 1:
            return np.arange(len(data))
        rng = np.random.Generator(np.random.PCG64(int(run.rng().integers(1 << 63))))
        return np.sort(rng.permutation(len(data))[: self._count(len(data))])

    def least_sure(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """Indices of the `share` of samples with the highest hardened entropy, highest first.

        logits: (n, classes); equations 6.8 and 6.9. Equal entropies keep the order of the data.
        """
        scores = entropy(logits / np.float32(self.rho))
        order = np.argsort(-scores, kind="stable")
        return order[: self._count(len(logits))].astype(np.int64)

    @property
    def _scores(self) -> bool:
        return self.select == "entropy" and self.share < 1

    def _count(self, samples: int) -> int:
        return ceil(self.share * samples)

    def trains_head(self, manifest: Manifest) -> bool:
        """Never: labels alone do not tell which samples it trains on."""
        return False
