"""What a device works with, and how it trains one form of an update with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from device_runtime.client.energy import Account, Energy
from device_runtime.client.errors import OutOfMemory
from device_runtime.client.policy.privacy_budget import Guard
from device_runtime.client.selection.choose import Candidate, Loads
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import ModelError
from device_runtime.profiles import Power
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.statistics import class_statistics
from device_runtime.strategies.training.device_half import NOTHING, Contribution, LocalData, OutOfTime, Run

from .engine_guard import Watcher


@dataclass(frozen=True)
class Equipment:
    """See `work.Worker`. `models` by member, the main one by "".

    `memory` gives what a kind kept here, `aside` is what came beside the base, `round` and `rare` are the
    offer's; `guard` spends the samples' privacy before they are trained on, `account` tells the energy.
    """

    name: str
    models: Mapping[str, DeviceModel]
    data: LocalData
    loads: Loads
    watcher: Watcher
    clock: Callable[[], float]
    guard: Guard
    progress: Callable[[float], None] = lambda _: None
    memory: Callable[[str], Tensors] = lambda _: NOTHING
    aside: Tensors = field(default_factory=lambda: NOTHING)
    account: Account = field(default_factory=Account)
    lost: Callable[[], float] = lambda: 0.0
    round: int = 0
    rare: tuple[int, ...] = ()

    @property
    def peak_bytes(self) -> int:
        return self.watcher.peak_bytes

    def begin(self) -> None:
        self.watcher.start()
        self.account.begin()

    def energy(self, power: Power, seconds: float) -> Energy:
        return self.account.end(power, seconds)

    def barred(self, strategy: AnyStrategy) -> str:
        return self.guard.unfit(strategy, len(self.data))

    def spent(self, strategy: AnyStrategy) -> float:
        return self.guard.spent(strategy)

    def train(self, chosen: Candidate, seed: int, deadline: float) -> tuple[AnyStrategy, Contribution]:
        strategy = chosen.strategy
        model, memory = self.models[strategy.member], self.memory(strategy.name)
        run = Run(
            seed,
            self.name,
            self.clock,
            deadline,
            self.progress,
            memory,
            self.aside,
            lost=self.lost,
            round=self.round,
            rare=self.rare,
        )
        self.guard.before(strategy, len(self.data))
        try:
            trained = class_statistics.train(strategy, model, self.data, run)
            check(trained.tensors, class_statistics.expected(strategy, model.manifest))
        except (OutOfTime, OutOfMemory, MemoryError, ModelError) as error:
            self.watcher.clear(model)
            if isinstance(error, MemoryError):  # see watchdog.cap
                raise OutOfMemory(f"no more memory is to be had: {error}") from None
            raise
        form = trained.form or strategy.form
        return _ended(strategy, form), replace(trained, form=form)


def _ended(strategy: AnyStrategy, form: str) -> AnyStrategy:
    """The form of this name that the clock has left of it, found to a hundredth of its work."""
    if form == strategy.form:
        return strategy
    left = (strategy.stopped(n / 100) for n in range(1, 100))
    return next((one for one in left if one is not None and one.form == form), strategy)
