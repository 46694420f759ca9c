"""Remembers what each device has said about itself."""

from __future__ import annotations

from device_runtime.aggregator.rounds.events import Update
from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.messages import Contribution


class DeviceStatements:
    """The samples in each device's hello, its latest plan, and its last full contribution.

    `plans`: kind and reasons of each device's latest plan.
    """

    def __init__(self) -> None:
        self.plans: dict[str, tuple[str, str]] = {}
        self._samples: dict[str, int] = {}
        self._whole: dict[str, Contribution] = {}

    def greeted(self, device: str, samples: int) -> None:
        """Note the samples in a device's hello."""
        self._samples[device] = max(samples, self._samples.get(device, 0))

    def samples(self, device: str) -> int:
        """The largest number of samples in a device's hellos; 0 if none has come."""
        return self._samples.get(device, 0)

    def why(self, update: Update) -> str:
        """The reasons of the device's latest plan (sent when it changes), if the update is of its kind."""
        kind, why = self.plans.get(update.device, ("", ""))
        return why if kind.split(" ")[0] == update.kind else ""

    def contributed(self, device: str, message: Contribution, size: int) -> None:
        """Note a device's last full contribution: compact ones leave out what they share with it."""
        self._whole.pop(device, None)
        if message.seq and message.body and size <= compact_round.MOST_BYTES:
            self._whole[device] = compact_round.without_values(message)

    def whole(self, device: str) -> Contribution | None:
        """The contribution that a compact one of this device is completed from; None for none."""
        return self._whole.get(device)

    def forget(self, device: str) -> None:
        """Forget a device that is away."""
        for said in (self.plans, self._samples, self._whole):
            said.pop(device, None)
