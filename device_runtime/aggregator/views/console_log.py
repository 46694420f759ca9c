"""The view without a terminal: one line per round, and a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Protocol, TextIO

from tabulate import tabulate

from device_runtime.aggregator.machine.run_events import (
    Finished,
    Observer,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RoundRecord,
    RunEvent,
    Started,
    SumsAwaited,
)
from device_runtime.broker.wire.messages import MODELLED
from device_runtime.models.bundles.targets import ACCURACY, metric_text, metrics_text


class ConsoleView(Observer, Protocol):
    """An observer for people."""

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""


class ConsoleLog:
    """Writes a line as each round closes, with `label` before it; `quiet`: only the table at the end."""

    def __init__(self, out: TextIO, quiet: bool = False, label: str = "") -> None:
        self._out = out
        self._label = label
        self._quiet = quiet
        self._closed: list[RoundClosed] = []
        self._rounds = 0
        self._idle: dict[str, str] = {}
        self._devices_seen = True  # so that "no device is there" is printed once

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                self._closed = list(event.closed)
                self._rounds = event.task.rounds
                self._line(started(event))
            case RoundOpened():
                self._idle, self._devices_seen = {}, True
            case PlanReported(device=device, kind="", reasons=reasons):
                self._idle[device] = "; ".join(reasons) or "no reason given"
            case PlanReported(device=device):
                self._idle.pop(device, None)
            case RoundExtended():
                if event.devices or self._devices_seen:
                    self._line(extended(event) + sitting_out_text(self._idle))
                self._idle, self._devices_seen = {}, event.devices > 0
            case SumsAwaited() if event.deadlines:
                self._line(f"round {event.round} {event.text}")
            case RoundClosed():
                self._closed.append(event)
                self._line(f"round {event.record.round} of {self._rounds}: {summary(event)}")
            case Finished():
                heading = f"{self._label.strip()}\n" if self._label else ""
                print(heading + table(self._closed), file=self._out, flush=True)

    def close(self) -> None:
        """Nothing to restore."""

    def _line(self, text: str) -> None:
        if not self._quiet:
            print(self._label + text, file=self._out, flush=True)


def started(event: Started) -> str:
    """The first line: task, run, and whether it is resumed."""
    task = event.task
    text = f"task {task.name!r}, run {event.run}: {task.rounds} rounds of {task.round_deadline_s:g} s"
    if event.resumed:
        text += f"; resumed after {len(event.closed)} closed"
    return text


def extended(event: RoundExtended) -> str:
    """The line that says why a round is extended."""
    return (
        f"round {event.round} extended by {event.deadline_s:g} s: "
        f"{event.contributions} of {event.needed} contributions{event.outlook}"
    )


def sitting_out_text(reasons: Mapping[str, str]) -> str:
    """How many devices sit out, and the reason of the first one."""
    for device, why in sorted(reasons.items()):
        return f"; {len(reasons)} sitting out, {device} as {why}"
    return ""


def summary(closed: RoundClosed) -> str:
    """The figures of a round in one line."""
    record = closed.record
    parts = [
        f"{record.metric} {judged(record)}{held_out_by(record)}",
        *([metrics_text(record.metrics)] if record.metrics else []),
        f"loss {number(record.eval_loss)}",
        contribution_counts(closed) or "nobody",
        f"{size(record.bytes_up)} up, {size(record.bytes_down)} down",
        f"{record.energy_j:.3g} J{energy_from(closed)}",
        f"{record.duration_s:.1f} s",
    ]
    spent = max((c.epsilon for c in closed.contributions if not isnan(c.epsilon)), default=0.0)
    if spent:
        parts.append(f"epsilon at most {spent:.2f}")
    if not isnan(record.central_epsilon):
        parts.append(f"epsilon {record.central_epsilon:.2f} spent by noise")
    return ", ".join(parts) + (f" ({closed.note})" if closed.note else "")


def table(closed: list[RoundClosed]) -> str:
    """A table with one row per round."""
    metric, more = metric_names(closed)
    rows = [
        [
            c.record.round,
            judged(c.record),
            *(f"{c.record.metrics.get(name, nan):.4g}" for name in more),
            number(c.record.eval_loss),
            contribution_counts(c),
            size(c.record.bytes_up),
            size(c.record.bytes_down),
            f"{c.record.energy_j:.3g} J",
            f"{c.record.duration_s:.1f} s",
        ]
        for c in closed
    ]
    headers = ["round", metric, *more, "loss", "updates", "up", "down", "energy", "time"]
    return tabulate(rows, headers, disable_numparse=True)


def judged(record: RoundRecord) -> str:
    """How good the model is: by evaluation data or, without, on samples that devices held out, marked so."""
    if isnan(record.eval_acc) and record.held_out_samples:
        return f"{metric_text(record.metric, record.held_out_acc)} of {record.held_out_samples} held out"
    return metric_text(record.metric, record.eval_acc)


def held_out_by(record: RoundRecord) -> str:
    """Text to append where `judged` is on samples that devices held out: by whom, and of which model.

    With the accuracy of the head that is not served, where devices counted it.
    """
    if not (isnan(record.eval_acc) and record.held_out_samples):
        return ""
    other = record.held_out_other_acc
    text = f"; {metric_text(record.metric, other)} with the {record.held_out_other_head} head"
    return f" by devices ({record.held_out_of}{'' if isnan(other) else text})"


def metric_names(closed: Sequence[RoundClosed]) -> tuple[str, tuple[str, ...]]:
    """The names of the metric by which the models of these rounds are judged, and of the further ones."""
    records = [event.record for event in closed if event.record.metrics or not isnan(event.record.eval_acc)]
    return (records[-1].metric, tuple(records[-1].metrics)) if records else (ACCURACY, ())


def energy_from(closed: RoundClosed) -> str:
    """Whether a round's energy was measured: " measured", " modelled", or by how many devices."""
    measured = sum(c.energy_source != MODELLED for c in closed.contributions)
    devices = len(closed.contributions)
    if not devices:
        return ""
    if 0 < measured < devices:
        return f" ({measured} of {devices} measured)"
    return " measured" if measured else f" {MODELLED}"


def contribution_counts(closed: RoundClosed) -> str:
    """The number of contributions of each kind: "3 full, 1 zeroth-order"."""
    counts = Counter(contribution.kind for contribution in closed.contributions)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def percent(share: float) -> str:
    """An accuracy; a dash when it was not measured."""
    return "-" if isnan(share) else f"{share:.1%}"


def number(value: float) -> str:
    """A loss; a dash when it was not measured."""
    return "-" if isnan(value) else f"{value:.3f}"


def size(count: int) -> str:
    """Bytes in the unit that fits: 950 B, 12.3 kB, 4.5 MB."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} B"
