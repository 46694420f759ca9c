"""A worker on a virtual clock: advances the time by what training would take, without training."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from device_runtime.device.energy import Energy, modelled
from device_runtime.device.selection.choose import Candidate, Loads
from device_runtime.profiles import DeviceProfile, Power
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import OutOfTime, Run, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.statistics import kind_statistics
from device_runtime.strategies.terms.accountant import PrivacyError
from device_runtime.strategies.terms.dp_sgd import PrivacyLedger, dp_settings, spent_in_round

STEPS = (0.01, *(tenth / 10 for tenth in range(1, 10)))
"""Shares of an update after which a device checks its clock, so that it notices lateness early."""


UNSPENT = PrivacyLedger()


class VirtualWorker:
    """An AssignmentWorker that lets the time of training pass on a virtual clock, without training.

    `believed` is the profile that the device plans with; `slowdown` is its real seconds over those predicted
    without its learnt corrections.
    """

    def __init__(
        self,
        believed: DeviceProfile,
        loads: Loads,
        now: float,
        slowdown: float,
        ledger: PrivacyLedger = UNSPENT,
    ) -> None:
        """`ledger`: the privacy spent so far by its samples; training adds to it."""
        self.ledger = ledger
        self.loads = loads
        self.peak_bytes = 0
        self.now = now
        self.flops = 0.0
        self._believed, self._slowdown = believed, slowdown

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    def _clock(self) -> float:
        return self.now

    def begin(self) -> None:
        self.peak_bytes = self._believed.memory.resident_bytes

    def energy(self, power: Power, seconds: float) -> Energy:
        return modelled(power, seconds, busy_s=seconds)

    def forbidden_reason(self, strategy: AnyStrategy) -> str:
        return privacy_refusal(self.ledger, strategy, self._samples)

    def epsilon_spent(self, strategy: AnyStrategy) -> float:
        dp = dp_settings(strategy)
        return nan if dp is None else self.ledger.epsilon(dp.delta)

    @property
    def _samples(self) -> int:
        return next(iter(self.loads.values())).samples

    def train(self, chosen: Candidate, seed: int, upload_at: float) -> tuple[AnyStrategy, Update]:
        """The form that there was time for, and its update without tensors.

        Raises OutOfTime at the time at which a device would notice that it will miss the deadline.
        """
        strategy, load = chosen.strategy, self.loads[chosen.strategy.member]
        if event := spent_in_round(strategy, load.samples):
            self.ledger = self.ledger.after(event)
        cost = chosen.cost or kind_statistics.cost(strategy, load, self._believed)
        self.peak_bytes = max(self.peak_bytes, cost.peak_memory_bytes)
        predicted_s = cost.compute_s / self._believed.corrections.get(chosen.kind, 1.0)
        began, seconds = self.now, predicted_s * self._slowdown
        form, share = strategy, 1.0
        try:
            if began + seconds > upload_at:
                form, share = self._hurried(strategy, seconds, Run(seed, "", self._clock, upload_at))
        except OutOfTime:
            self.flops += cost.flops * (self.now - began) / seconds if seconds else 0.0
            raise
        if form is not strategy:
            share = max(share, kind_statistics.cost(form, load, self._believed).flops / cost.flops)
        self.now = began + share * seconds
        self.flops += share * cost.flops
        return form, Update(chosen.kind, {}, load.samples, nan, form.variant)

    def _hurried(self, strategy: AnyStrategy, seconds: float, run: Run) -> tuple[AnyStrategy, float]:
        """The form that a device sends without time for the whole update, and the share of the work done.

        The device notices this when it checks its clock. If the work so far can be sent, it stops; else it
        continues to the least work that can, if there is time. See `strategies.training.local_training`.
        """
        began, aim = self.now, 1.0
        for done in STEPS:
            if done >= aim:
                break
            self.now = began + done * seconds
            try:
                run.pace(began, done / aim, aim)
            except OutOfTime:
                if aim < 1.0:
                    raise
                if form := capabilities.stopped(strategy, done):
                    return form, done
                aim = _least(strategy, done)
                if aim == 1.0:
                    raise
                run.pace(began, done / aim, aim)
        least = capabilities.stopped(strategy, aim)
        return (strategy, 1.0) if least is None else (least, (self.now - began) / seconds)


def privacy_refusal(ledger: PrivacyLedger, strategy: AnyStrategy, samples: int) -> str:
    """Why the privacy limit forbids a device with this ledger to train this form; empty if it may."""
    dp = dp_settings(strategy)
    if dp is None or (event := spent_in_round(strategy, samples)) is None:
        return ""
    try:
        ledger.check(event, dp.limit)
    except PrivacyError as error:
        return str(error)
    return ""


def _least(strategy: AnyStrategy, done: float) -> float:
    """The least share of the work, to a hundredth, after which it can be sent."""
    if capabilities.stopped(strategy, 0.99) is None:
        return 1.0
    return next(n / 100 for n in range(round(100 * done), 100) if capabilities.stopped(strategy, n / 100))
