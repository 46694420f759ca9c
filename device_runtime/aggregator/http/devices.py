"""The devices of one task as they were last heard, and pages of those that a filter selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from device_runtime.aggregator.machine.run_events import (
    ContributionRecord,
    ContributionRefused,
    DeviceSeen,
    PlanReported,
    RoundClosed,
)

from .shapes import DevicePage, DeviceStatus, Doing, measured

DEVICES_KEPT = 200_000
"""Devices that are remembered; beyond that, the one that was first seen longest ago is forgotten."""


@dataclass(frozen=True)
class DeviceFilter:
    """Selects devices by text in name, tags, profile, kind, reason, activity or version, and by presence.

    `online`: True or False for those that are online or not, None for both.
    """

    search: str = ""
    online: bool | None = None
    offset: int = 0
    limit: int = 100


class WatchedDevices:
    """The devices of a task: `known` by name, those `sitting_out` the open round, and the number `online`.

    Times are in seconds since 1970; not thread-safe.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, DeviceStatus] = {}
        self.sitting_out: set[str] = set()
        self.online = 0

    def seen(self, event: DeviceSeen, now: float) -> None:
        """A device came, went, or said hello."""
        changes: dict[str, object] = {"online": event.online, "last_seen": now}
        if event.engine or event.profile:
            changes |= {"profile": event.profile, "engine": event.engine}
            changes |= {"num_examples": event.num_examples, "memory_bytes": event.memory_bytes}
            changes |= {
                "battery_percent": event.battery_percent,
                "tags": event.tags,
                "version": event.version,
            }
        self._set(self._of(event.device), changes)

    def planned(self, plan: PlanReported, now: float) -> None:
        """A device has decided what to do in the round."""
        doing: Doing = "planned" if plan.kind else "rests" if plan.rests else "sits out"
        (self.sitting_out.discard if plan.kind else self.sitting_out.add)(plan.device)
        changes = {"doing": doing, "round": plan.round, "kind": plan.kind, "why": "; ".join(plan.reasons)}
        changes["variant"] = ""
        predicted_s = measured(plan.seconds)
        self._set(self._of(plan.device), {**changes, "predicted_s": predicted_s, "last_seen": now})

    def contributed(self, record: ContributionRecord, now: float) -> None:
        """A contribution of a device counts."""
        self._count(record, {"doing": "sent", "last_seen": now})

    def closed(self, closed: RoundClosed) -> None:
        """An earlier process closed this round: the devices of its contributions may be gone."""
        for record in closed.contributions:
            self._count(record, {"online": False})

    def refused(self, refused: ContributionRefused, now: float) -> None:
        """A contribution of a device does not count."""
        before = self._of(refused.device)
        changes: dict[str, object] = {"last_seen": now, "not_counted": before.not_counted + 1}
        if refused.status != "duplicate":
            changes |= {"doing": refused.status, "round": refused.round, "kind": refused.kind}
            changes |= {"why": refused.reason, "variant": ""}
        self._set(before, changes)

    def _count(self, record: ContributionRecord, changes: Mapping[str, object]) -> None:
        before = self._of(record.device)
        self._set(before, {**changes, "contributions": before.contributions + 1, **_costs(record)})

    def _of(self, name: str) -> DeviceStatus:
        return self.statuses.get(name) or DeviceStatus(name, online=False)

    def _set(self, before: DeviceStatus, changes: Mapping[str, object]) -> None:
        in_memory = before.device in self.statuses
        if not in_memory and len(self.statuses) >= DEVICES_KEPT:
            gone = self.statuses.pop(next(iter(self.statuses)))
            self.online -= gone.online
        after = replace(before, **changes)  # type: ignore[arg-type]
        self.online += after.online - (before.online if in_memory else False)
        self.statuses[before.device] = after


def page_of(devices: Iterable[DeviceStatus], selection: DeviceFilter) -> DevicePage:
    """The selected devices, those online first, then by name."""
    words = selection.search.casefold()
    matches = [
        device
        for device in devices
        if (selection.online is None or device.online == selection.online)
        and any(words in text.casefold() for text in _texts(device))
    ]
    matches.sort(key=lambda device: (not device.online, device.device))
    return DevicePage(len(matches), matches[selection.offset : selection.offset + selection.limit])


def _costs(record: ContributionRecord) -> dict[str, object]:
    return {
        "round": record.round,
        "kind": record.kind,
        "variant": record.variant,
        "why": record.why,
        "num_examples": record.num_examples,
        "train_s": measured(record.train_time_s),
        "energy_j": measured(record.energy_j),
        "energy_source": record.energy_source,
        "energy_uncertainty": measured(record.energy_uncertainty),
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
    }


def _texts(device: DeviceStatus) -> tuple[str, ...]:
    named = device.device, device.profile, device.kind, device.variant, device.why, device.doing
    return (*named, *device.tags, device.version)
