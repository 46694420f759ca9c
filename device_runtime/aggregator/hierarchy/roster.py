"""Who is at the site: the samples its devices have, and why some of them sit out. Told by the service."""

from __future__ import annotations

from device_runtime.aggregator.views.listener import (
    DeviceSeen,
    Happening,
    PlanMade,
    RoundExtended,
    RoundOpened,
    Started,
)


class Roll:
    """An observer of the site's service."""

    def __init__(self) -> None:
        self._samples: dict[str, int] = {}
        self._idle: dict[str, str] = {}

    def __call__(self, happening: Happening) -> None:
        match happening:
            case Started():
                self._samples, self._idle = {}, {}
            case RoundOpened() | RoundExtended():
                self._idle = {}
            case DeviceSeen(device=device, online=False):
                self._samples.pop(device, None)
            case DeviceSeen(device=device, num_examples=samples):
                if samples > 0:
                    self._samples[device] = samples
            case PlanMade(device=device, kind="", reasons=reasons):
                self._idle[device] = "; ".join(reasons) or "no reason given"
            case PlanMade(device=device):
                self._idle.pop(device, None)

    @property
    def devices(self) -> int:
        """Devices that are here and ready."""
        return len(self._samples)

    @property
    def samples(self) -> int:
        """What they hold together."""
        return sum(self._samples.values())

    @property
    def idle(self) -> str:
        """Who sits the round out, and why the first of them does; empty when nobody does."""
        for device, why in sorted(self._idle.items()):
            return f"{len(self._idle)} sitting out, {device} as {why}"
        return ""
