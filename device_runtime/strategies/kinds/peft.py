"""FedPEFT: devices train and send only a small tunable set and the head (papers 003 and 004)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np

from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.models.training.optimizer import Sgd, clip
from device_runtime.profiles import GraphPass, Work, Workload
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Settings
from device_runtime.strategies.settings import Momentum, Setting, WeightDecay
from device_runtime.strategies.terms.dp_sgd import dp_settings
from device_runtime.strategies.training.local_training import follows_plan
from device_runtime.strategies.training.workload import forward_work

from .fedavg import FedAvg

LEARNING_RATES: Mapping[str, float] = MappingProxyType(
    {
        "head": 0.005,
        "bias": 0.01,
        "adapter": 0.005,
        "prompt": 0.01,
        "prefix": 0.01,
        "lora": 0.01,
        "sparse": 0.01,
    }
)
"""By tunable set: paper 003, section IV-A. It names none for the last three; they are as bias and prompt."""
PRIVATE_LEARNING_RATES: Mapping[str, float] = MappingProxyType(
    {
        "head": 5e-4,
        "bias": 1e-3,
        "adapter": 5e-4,
        "prompt": 3e-4,
        "prefix": 3e-4,
        "lora": 1e-3,
        "sparse": 1e-3,
    }
)
"""The same under differential privacy: paper 004, table 8."""


@dataclass(frozen=True)
class Peft(FedAvg):
    """Trains a parameter-efficient set together with the head.

    `tunable="head"` is linear probing (LP, head-tuning). With cross-entropy alone, each sample then passes
    through the network once, not once an epoch. `tunables` names several sets in the order of preference, one
    form for each, for devices to choose from. lr: 0 is the paper's for the set, with or without privacy.
    Defaults: SGD, weight decay 1e-4, batch 64, E = 10 (section IV-A), no momentum, of which the papers say
    nothing.
    """

    name: ClassVar[str] = "peft"
    about: ClassVar[KindInfo] = KindInfo(
        "a few parameters: head, bias, adapter, prompt, prefix or LoRA",
        "these, and the classifier",
        "FedPEFT: Sun et al. 2022",
    )
    mixed_round_settings: ClassVar[Settings] = {}
    lr: Annotated[
        float,
        Setting(
            "Learning rate of local training; 0: the paper's for the tunable set.", example=0.005, at_least=0
        ),
    ] = 0.0
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 1e-4
    tunable: Annotated[
        str,
        Setting("Tunable set: the parameters that change.", "lora", choices=tuple(LEARNING_RATES)),
    ] = "bias"
    tunables: Annotated[
        tuple[str, ...],
        Setting(
            "Several tunable sets for devices to choose from, the preferred first; empty: `tunable`.",
            example=("lora", "bias"),
            choices=tuple(LEARNING_RATES),
        ),
    ] = ()

    def __post_init__(self) -> None:
        if len(set(self.tunables)) != len(self.tunables):
            raise ValueError(f"tunables are {', '.join(self.tunables)}: each can be named once")
        super().__post_init__()

    @property
    def trained(self) -> str:
        return self.tunables[0] if self.tunables else self.tunable

    @property
    def sgd(self) -> Sgd:
        rates = LEARNING_RATES if dp_settings(self) is None else PRIVATE_LEARNING_RATES
        return Sgd(self.lr or rates[self.trained], self.momentum, self.weight_decay)

    @property
    def variant(self) -> str:
        return f"{self.trained} {super().variant}".rstrip()

    def variants(self) -> tuple[Peft, ...]:
        sets = [replace(self, tunable=name, tunables=()) for name in self.tunables] or [self]
        return tuple(variant for kind in sets for variant in super(Peft, kind).variants())

    def work(self, workload: Workload) -> Work:
        """The work of training.

        Linear probing computes features once, then runs forward and backward (twice as much) through the
        head.
        """
        if self.trained != "head" or self.terms or workload.no_classes:
            return super().work(workload)
        n = workload.samples
        work = forward_work(workload, n, workload.values("head"), self.codec)
        batches = self.epochs * ceil(n / self.batch)
        steps = GraphPass("head", 3 * n * self.epochs, workload.head_flops, steps=batches)
        return replace(work, passes=(*work.passes, steps))

    @follows_plan
    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        if not self.trains_head(model.manifest):
            return super().train(model, data, run)
        began = run.clock()
        features = model.features(data.x)
        run.pace(began, 1.0)
        head, training = SoftmaxHead(model.manifest, model.weights), self.head_training(data.y, run)
        steps, began, losses = training.optimizer.start(head.params.vector), run.clock(), []
        for place, batch in enumerate(training.batches):
            losses.append(head.loss_and_grads(features[batch], data.y[batch]))
            if training.clip_norm:
                clip(head.grads.vector, training.clip_norm)
            steps.step(head.params.vector, head.grads.vector)
            run.pace(began, (place + 1) / len(training.batches))
        sizes = [len(batch) for batch in training.batches[training.counted :]]
        loss = float(np.average(losses[training.counted :], weights=sizes))
        return Update(self.name, head.params.tensors(), len(data), loss, self.variant)
