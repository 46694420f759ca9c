"""The state of a live view, updated by each event; independent of the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRefused,
    DeviceSeen,
    Finished,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RunEvent,
    Started,
    SumsAwaited,
)

DEVICES_KEPT = 10_000
"""Most devices that are kept; with more, the one that was seen first is dropped."""


@dataclass(frozen=True)
class DeviceRow:
    """One device. `doing`: its kind in this round; `why`: the reason of its plan or of a refusal."""

    device: str
    online: bool = True
    profile: str = ""
    doing: str = ""
    why: str = ""
    samples: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    energy_j: float = 0.0
    rounds: int = 0
    sent: bool = False


@dataclass
class TerminalState:
    """The state of the display. `closes_at` is by the same clock as `now` of `take`."""

    title: str = ""
    rounds: int = 0
    round: int = 0
    closes_at: float = 0.0
    note: str = "waiting for devices"
    devices: dict[str, DeviceRow] = field(default_factory=dict)
    closed: list[RoundClosed] = field(default_factory=list)

    def take(self, event: RunEvent, now: float) -> None:
        """Updates the state by an event; `now` in seconds."""
        match event:
            case Started():
                self._start(event)
            case RoundOpened():
                self.round, self.closes_at = event.round, now + event.deadline_s
                self.note = "resumed" if event.again else ""
                for name, row in self.devices.items():
                    self.devices[name] = replace(row, sent=False)
            case RoundExtended():
                self.closes_at = now + event.deadline_s
                counted = f"{event.contributions} of {event.needed} contributions"
                self.note = f"extended: {counted}{event.outlook}"
            case SumsAwaited():
                self.note = event.text
            case DeviceSeen():
                self._seen(event)
            case PlanReported():
                why = event.reasons[0] if event.reasons else ""
                doing = event.kind or "sits out"
                self._set(event.device, doing=doing, why=why, energy_j=event.energy_j)
            case Contributed():
                self._contributed(event)
            case ContributionRefused(status="duplicate"):
                pass
            case ContributionRefused():
                self._set(event.device, doing=event.status, why=event.reason)
            case RoundClosed():
                self.closed.append(event)
            case Finished():
                self.note = "finished"

    def _start(self, event: Started) -> None:
        self.title = f"{event.task.name} (run {event.run})"
        self.rounds = event.task.rounds
        self.closed = list(event.closed)
        for closed in self.closed:
            for contribution in closed.contributions:
                row = self._row(contribution.device)
                self._set(row.device, online=False, rounds=row.rounds + 1)

    def _seen(self, event: DeviceSeen) -> None:
        row = self._row(event.device)
        profile = event.profile or row.profile
        samples = event.num_examples or row.samples
        self._set(event.device, online=event.online, profile=profile, samples=samples)

    def _contributed(self, event: Contributed) -> None:
        record = event.record
        row = self._row(record.device)
        self._set(
            record.device,
            doing=record.kind,
            samples=record.num_examples,
            seconds=record.train_time_s,
            bytes_up=record.bytes_up,
            energy_j=record.energy_j,
            rounds=row.rounds + (not row.sent),
            sent=True,
        )

    def _row(self, device: str) -> DeviceRow:
        return self.devices.get(device) or DeviceRow(device)

    def _set(self, device: str, **changes: object) -> None:
        if device not in self.devices and len(self.devices) >= DEVICES_KEPT:
            del self.devices[next(iter(self.devices))]
        self.devices[device] = replace(self._row(device), **changes)  # type: ignore[arg-type]


def sparkline(values: list[float]) -> str:
    """A line chart of block characters, one per value; nan is a blank."""
    blocks = "▁▂▃▄▅▆▇█"
    real = [value for value in values if value == value]
    low, high = min(real, default=0.0), max(real, default=0.0)
    span = (high - low) or 1.0
    return "".join(blocks[round((v - low) / span * 7)] if v == v else " " for v in values)
