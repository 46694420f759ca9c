"""Full updates: FedAvg (McMahan et al. 2017, algorithm 1) and what builds on it (FedProx, MOON)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Work, Workload

from .kind import KindInfo
from .settings import MOST, Setting
from .training import local_training
from .training.device_half import LocalData, Run
from .training.tensor_update import TensorUpdate

ReducedEpochs = Annotated[
    int,
    Setting(
        "Fewer epochs for a device that cannot afford `epochs`; 0: no such form.",
        example=1,
        unit="epochs",
        at_least=0,
        at_most=MOST,
    ),
]
Graded = Annotated[
    bool,
    Setting(
        "Whether a slow device trains half of the epochs, a quarter, .., as many as it can afford; at least"
        " `reduced_epochs`, or one.",
        example=True,
    ),
]
LeastEpochs = Annotated[
    int,
    Setting(
        "Epochs after which training may end early when time runs out; 0: as `reduced_epochs`.",
        example=2,
        unit="epochs",
        at_least=0,
        at_most=MOST,
    ),
]


@dataclass(frozen=True)
class Full(TensorUpdate):
    """Every parameter, trained for `epochs` local epochs.

    With `reduced_epochs > 0` a device that cannot afford `epochs` trains that many: FedAvg+, FedProx+, MOON+
    (thesis 002, section 4.5.2: stragglers run E_r = 1 epochs instead of being dropped). With `graded` (ours)
    it trains half of `epochs`, a quarter, .., at least `reduced_epochs` or one. A device that began all
    epochs and sees by its clock that they do not fit ends after the last whole epoch that does, if it has
    done `least_epochs` (0: as `reduced_epochs`).
    Defaults: thesis 002, table 4.1 (SGD lr 0.1, momentum 0.5, weight decay 1e-5, batch 64, E = 10).
    """

    name: ClassVar[str] = "full"
    about: ClassVar[KindInfo] = KindInfo(
        "everything (with settings for FedProx, MOON, or fewer epochs on slow devices)",
        "all parameters",
        "FedAvg: McMahan et al. 2017; FedProx: Li et al. 2020; MOON: Li et al. 2021",
    )
    reduced_epochs: ReducedEpochs = 0
    graded: Graded = False
    least_epochs: LeastEpochs = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reduced_epochs", "least_epochs"):
            if getattr(self, name) > self.epochs:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 to {self.epochs}, the epochs")

    @property
    def form(self) -> str:
        return f"epochs={self.epochs}" if self.reduced_epochs == self.epochs else ""

    @property
    def least(self) -> int:
        """The epochs after which training may end early; 0 if it may not."""
        least = self.least_epochs or self.fewest
        return least if least < self.epochs else 0

    @property
    def fewest(self) -> int:
        """The fewest epochs that a device may choose to train; 0 if it must train all."""
        return self.reduced_epochs or int(self.graded)

    def variants(self) -> tuple[Full, ...]:
        if self.fewest in (0, self.epochs):
            return (self,)
        forms = [replace(self, reduced_epochs=0, graded=False, least_epochs=self.least)]
        epochs = self.epochs // 2
        while self.graded and epochs > self.fewest:
            forms.append(self._of(epochs))
            epochs //= 2
        return *forms, self._of(self.fewest)

    def stopped(self, share: float) -> Full | None:
        """The form with the epochs that were whole by then; None if they are too few."""
        whole = int(self.epochs * share + 1e-9)
        return self.ended(whole) if 0 < self.least <= whole else None

    def ended(self, epochs: int) -> Full:
        return self if epochs >= self.epochs else self._of(epochs)

    def _of(self, epochs: int) -> Full:
        return replace(self, epochs=epochs, reduced_epochs=epochs, graded=False, least_epochs=0)

    def work_on(self, workload: Workload, samples: int, scored: int = 0) -> Work:
        """As for any tensor update, plus a copy of the parameters if training may end early."""
        work = super().work_on(workload, samples, scored)
        kept = 4 * workload.values("all") if self.least else 0
        return replace(work, peak_bytes=work.peak_bytes + kept) if kept else work

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> local_training.TrainingPlan:
        return replace(super().plan(model, data, run), least=self.least)
