"""Partial epochs: lets a slow device train fewer local epochs than others, for any kind with `epochs`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar, cast

from device_runtime.strategies.interface.capabilities import EndsEarly, listed_variant
from device_runtime.strategies.interface.device_half import Run
from device_runtime.strategies.interface.kind import Strategy
from device_runtime.strategies.settings import MOST, LocalEpochs, Setting

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
    as `reduced_epochs`).
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

    def epochs_in(self, run: Run) -> int:
        """The number of epochs to train in this round."""
        return 1 + int(run.rng().integers(self.epochs)) if self.drawn_epochs else self.epochs

    def _of(self: K, epochs: int) -> K:
        return replace(self, epochs=epochs, reduced_epochs=epochs, graded=False, least_epochs=0)
