"""The live view on a terminal: header, devices, rounds, redrawn a few times a second (with rich).

The state of the view is updated by each event, and knows nothing of the terminal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import TYPE_CHECKING

from device_runtime.aggregator.errors import MissingExtra
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

from .console_log import contribution_counts, judged, metric_names, number, size, table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

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
                doing = event.kind or ("rests" if event.rests else "sits out")
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
        self.title = f"{event.task.title or event.task.name} (run {event.run})"
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


ROWS_SHOWN = 20
MOST_ROUNDS = 8
WHY_WIDTH = 40
"""Characters of a reason that are shown."""


class TerminalView:
    """An observer that draws the live view. While it is open, it shows the latest warnings below.

    Raises MissingExtra where rich is not installed.
    """

    def __init__(self, broker: str, console: Console | None = None) -> None:
        try:
            from rich.live import Live as RichLive
        except ImportError:
            raise MissingExtra("the live view needs rich: pip install 'device-runtime[aggregator]'") from None
        self._broker = broker
        self._state = TerminalState()
        self._lock = threading.Lock()  # rich draws in a thread of its own
        self._log = _LastLines()
        self._handlers = logging.root.handlers[:]
        self._closed = False
        logging.root.handlers[:] = [self._log]
        self._live = RichLive(console=console, refresh_per_second=4, get_renderable=self.draw)
        self._live.start()

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            self._state.take(event, time.monotonic())
        if isinstance(event, Finished):
            self.close()
            self._live.console.print(table(self._state.closed), markup=False)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._live.stop()
            logging.root.handlers[:] = self._handlers

    def draw(self) -> RenderableType:
        """The whole display in its current state."""
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            state = self._state
            parts: list[RenderableType] = [Text(self._header(state), style="bold"), _devices(state)]
            if state.closed:
                records = [closed.record for closed in state.closed]
                accuracies = [
                    each.held_out_acc if isnan(each.eval_acc) else each.eval_acc for each in records
                ]
                parts += [_rounds(state), Text(f"{metric_names(state.closed)[0]} {sparkline(accuracies)}")]
            parts += [Text(line, style="yellow") for line in self._log.lines]
            return Group(*parts)

    def _header(self, state: TerminalState) -> str:
        left = max(0.0, state.closes_at - time.monotonic())
        parts = [state.title, f"round {state.round} of {state.rounds}"]
        if state.round and state.note != "finished":
            parts.append(f"{left:.0f} s left")
        parts += [part for part in (state.note, self._broker) if part]
        return " · ".join(parts)


class _LastLines(logging.Handler):
    """A log handler that keeps the latest warnings for the display."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=3)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _devices(state: TerminalState) -> Table:
    grid = _grid("device", "profile", "this round", "why", "samples", "time", "up", "energy", "rounds")
    rows = sorted(state.devices.values(), key=lambda row: (not row.online, row.device))
    for row in rows[:ROWS_SHOWN]:
        grid.add_row(*_cells(row), style=None if row.online else "dim")
    if len(rows) > ROWS_SHOWN:
        grid.add_row(f"and {len(rows) - ROWS_SHOWN} more", style="dim")
    return grid


def _cells(row: DeviceRow) -> Iterator[Text]:
    from rich.text import Text  # never markup: some of it comes from devices

    return (Text(cell) for cell in _texts(row))


def _texts(row: DeviceRow) -> tuple[str, ...]:
    doing = f"{row.doing} ✓" if row.sent else row.doing
    return (
        row.device,
        row.profile,
        doing if row.online or row.sent else "offline",
        row.why if len(row.why) <= WHY_WIDTH else f"{row.why[: WHY_WIDTH - 3]}...",
        str(row.samples),
        f"{row.seconds:.1f} s",
        size(row.bytes_up),
        f"{row.energy_j:.3g} J",
        str(row.rounds),
    )


def _rounds(state: TerminalState) -> Table:
    metric, more = metric_names(state.closed)
    grid = _grid("round", metric, *more, "loss", "updates", "up", "down", "energy", "time")
    for closed in state.closed[-MOST_ROUNDS:]:
        record = closed.record
        grid.add_row(
            str(record.round),
            judged(record),
            *(f"{record.metrics.get(name, nan):.4g}" for name in more),
            number(record.eval_loss),
            contribution_counts(closed),
            size(record.bytes_up),
            size(record.bytes_down),
            f"{record.energy_j:.3g} J",
            f"{record.duration_s:.1f} s",
        )
    return grid


def _grid(*headers: str) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        grid.add_column(header)
    return grid
