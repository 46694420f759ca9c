"""Draws how the fleet's groups took part, how long their devices were busy, and the time line of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from device_runtime.simulation.compare.figures import duration
from device_runtime.simulation.history.metrics import AskCounts
from device_runtime.simulation.history.records import AskRecord, SimulatedRound

from .canvas import (
    FATES,
    INK,
    KINDS,
    MUTED,
    PAPER,
    STRONG,
    ComparedRuns,
    Drawing,
    kind_colour,
    outcomes,
    panels,
    stroke,
)

MOST_TICKS = 10
MOST_DOTS = 60
"""The most devices of a group that are drawn one by one."""


def who_took_part(compared: ComparedRuns) -> Drawing:
    """Draws the outcomes of each group's asks, stacked to 100%: kinds that counted, then other fates."""
    from matplotlib.patches import Patch

    columns = min(2, len(compared.policies))
    rows = ceil(len(compared.policies) / columns)
    groups = _groups(compared)
    height = rows * (0.75 + 0.34 * len(groups)) + 0.9
    figure, axes = panels(rows, columns, height, sharey=True, sharex=True)
    names: set[str] = set()
    for place, policy in enumerate(compared.policies):
        tallies = [run.tally for run in compared.of(policy)]
        names |= {outcome for tally in tallies for _, outcome in tally.outcomes}
        _stack(axes.flat[place], tallies, groups)
        axes.flat[place].set_title(policy)
    for unused in list(axes.flat)[len(compared.policies) :]:
        unused.set_visible(False)
    for on in axes[-1]:
        on.set_xlabel("share of the group's asks, %")
    patches = [
        Patch(facecolor=kind_colour(name), hatch=_hatch(name), edgecolor=PAPER, label=name)
        for name in outcomes(names)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=7, handlelength=1.2)
    text = (
        "Every time a device was asked counts once: in colour by the kind of update that counted, in grey "
        "where none did. At the right: how often devices of the group were asked in a run."
    )
    return Drawing("participation", "Who took part", text, figure)


def busy_times(compared: ComparedRuns) -> Drawing:
    """Draws each device's mean seconds per ask, by group, on a log scale, with the deadline."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    groups, policies = _groups(compared), compared.policies
    figure, axes = panels(1, 1, 1.3 + len(groups) * (0.16 + 0.2 * len(policies)))
    on = axes[0, 0]
    for place, policy in enumerate(policies):
        offset = (place - (len(policies) - 1) / 2) * 0.8 / len(policies)
        for row, group in enumerate(groups):
            _spread(on, policy, _of_group([run.tally for run in compared.of(policy)], group), row + offset)
        on.plot([], [], color=stroke(policy).colour, linewidth=5, label=policy)
    deadline_s = compared.plan.scenario.task.round_deadline_s
    on.axvline(deadline_s, color=MUTED, linestyle=":", linewidth=1.2)
    where: dict[str, Any] = {"xy": (deadline_s, 1.0), "xycoords": ("data", "axes fraction"), "va": "bottom"}
    on.annotate(f"deadline {duration(deadline_s)}", ha="center", fontsize=8.5, color=MUTED, **where)
    on.set_xscale("log")
    on.xaxis.set_major_locator(FixedLocator(_ticks(on.get_xlim())))
    on.xaxis.set_minor_formatter(NullFormatter())
    on.set_yticks(range(len(groups)), groups)
    on.set_ylim(len(groups) - 0.45, -0.55)
    on.xaxis.set_major_formatter(lambda seconds, _: duration(seconds))
    on.set_xlabel("busy for one update, from the start of the download to the end of the upload (log)")
    on.grid(axis="y", visible=False)
    on.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = (
        "Each device's mean over its updates, whatever became of them. The bar holds the middle half of "
        "the group, the line all but the outermost tenths, the notch the median; dots are single devices."
    )
    return Drawing("busy-times", "How long devices were busy", text, figure)


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Ticks at whole seconds, minutes, hours and days, at most about MOST_TICKS."""
    low, high = limits
    fine = [n * 10.0**power for power in range(-4, 1) for n in (1, 2, 5)] + [10.0, 20.0]
    coarse = [
        30.0,
        60,
        120,
        300,
        600,
        1800,
        3600,
        7200,
        5 * 3600,
        86400 / 2,
        86400,
        2 * 86400,
        5 * 86400,
        1e6,
    ]
    ticks = [tick for tick in fine + coarse if low <= tick <= high]
    return ticks[:: -(-len(ticks) // MOST_TICKS)] if ticks else []


def _groups(compared: ComparedRuns) -> list[str]:
    """The groups, the fastest first."""
    tallies = [run.tally for run in compared.runs]
    names = sorted({group for tally in tallies for group in tally.groups})
    return sorted(names, key=lambda group: float(np.median(_of_group(tallies, group) or [np.inf])))


def _of_group(tallies: list[AskCounts], group: str) -> list[float]:
    return [b.seconds / b.asks for tally in tallies for b in tally.busy.values() if b.group == group]


def _stack(on: Any, tallies: list[AskCounts], groups: list[str]) -> None:
    order = outcomes({outcome for tally in tallies for _, outcome in tally.outcomes})
    rows = [[sum(t.outcomes.get((group, what), 0) for t in tallies) for what in order] for group in groups]
    counts = np.array(rows, float).reshape(len(groups), len(order))
    whole = counts.sum(1, keepdims=True)
    shares = 100 * np.divide(counts, whole, out=np.zeros_like(counts), where=whole > 0)
    left = np.zeros(len(groups))
    for column, what in enumerate(order):
        on.barh(
            range(len(groups)), shares[:, column], left=left, height=0.72, color=kind_colour(what),
            hatch=_hatch(what), edgecolor=PAPER, linewidth=0.5,
        )  # fmt: skip
        left += shares[:, column]
    for row, asks in enumerate(whole[:, 0] / max(1, len(tallies))):
        on.annotate(f"{asks:,.0f}", (101.5, row), va="center", fontsize=8, color=MUTED, annotation_clip=False)
    on.set_yticks(range(len(groups)), groups)
    on.set(xlim=(0, 100), ylim=(len(groups) - 0.5, -0.5))
    on.grid(axis="y", visible=False)


def _hatch(what: str) -> str:
    return {"crashed": "////", "dropped out": "\\\\\\\\", "unheard": "...."}.get(what, "")


def _spread(on: Any, policy: str, seconds: list[float], row: float) -> None:
    durations = np.array([value for value in seconds if value > 0])
    if not durations.size:
        return
    look = stroke(policy)
    low, first, middle, third, high = np.quantile(durations, (0.1, 0.25, 0.5, 0.75, 0.9))
    on.hlines(row, low, high, color=look.colour, linewidth=1.2)
    on.hlines(row, first, third, color=look.colour, linewidth=6, alpha=0.55)
    if durations.size <= MOST_DOTS:
        on.plot(durations, np.full(durations.size, row), ".", color=look.colour, markersize=3.5, alpha=0.6)
    on.plot(middle, row, "|", color=look.colour, markersize=11, markeredgewidth=2.2)


ROWS_SHOWN = 20
"""The most devices that are drawn, evenly from the fastest to the slowest."""
PAST = 1.7
"""The axis ends at most at this many deadlines; longer times are written as text."""
NEAR = 0.3
"""If the longest update takes less than this share of the deadline, the deadline is written as text."""
DOWN, UP = "#b4bec8", "#6b7682"
SIGNS = {
    "counted": "o", "late": "X", "unopened": "X", "refused": "X", "crashed": "X", "dropped out": "X",
    "unheard": "X",
}  # fmt: skip


@dataclass(frozen=True)
class _Shown:
    """One panel: a round, the asks to draw, and the deadline in seconds since the round opened."""

    line: SimulatedRound
    asks: tuple[AskRecord, ...]
    deadline_s: float

    @property
    def end(self) -> float:
        longest = max(ask.ended_s for ask in self.asks) - self.line.opened_s
        if longest < NEAR * self.deadline_s:
            return 1.03 * longest
        return max(1.05 * self.deadline_s, 1.03 * min(longest, PAST * self.deadline_s))


def one_round(compared: ComparedRuns) -> Drawing | None:
    """Draws a round of the first seed of the first two policies; None if no device was asked in it."""
    deadline_s = compared.plan.scenario.task.round_deadline_s
    rounds: dict[str, _Shown] = {}
    for policy in compared.policies[:2]:
        run = compared.of(policy)[0]
        if run.round_asks:
            line = next(line for line in run.rounds if line.round == run.round_asks[0].round)
            rounds[policy] = _Shown(line, _some(run.round_asks), deadline_s)
    if not rounds:
        return None
    heights = [0.9 + 0.19 * len(each.asks) for each in rounds.values()]
    figure, axes = panels(len(rounds), 1, sum(heights) + 0.7, height_ratios=heights, sharex=True)
    end = max(each.end for each in rounds.values())
    for on, (policy, each) in zip(axes[:, 0], rounds.items(), strict=True):
        _panel(on, policy, each, end)
    axes[-1, 0].set_xlabel("virtual seconds since the round opened")
    asks = [ask for each in rounds.values() for ask in each.asks]
    figure.legend(handles=_legend(asks), loc="outside lower center", ncols=5, handlelength=1.4)
    text = (
        f"Round {asks[0].round} with seed {compared.runs[0].name.seed}; at most {ROWS_SHOWN} devices of "
        "it, evenly from the quickest to the slowest. Grey alone: it sat out. Nothing: it rested. Dotted: it "
        "waited, or was away."
    )
    return Drawing("one-round", "Time line of one round", text, figure)


def _some(asks: Sequence[AskRecord]) -> tuple[AskRecord, ...]:
    ordered = sorted(asks, key=lambda ask: (ask.ended_s - ask.asked_s, ask.device))
    count = min(ROWS_SHOWN, len(ordered))
    places = np.linspace(0, len(ordered) - 1, count).round().astype(int)
    return tuple(ordered[place] for place in places)


def _panel(on: Any, policy: str, content: _Shown, end: float) -> None:
    for row, ask in enumerate(content.asks):
        _bar(on, row, ask, (content.line.opened_s, end))
    title = f"{policy}: {content.line.participants} of {content.line.asked} updates counted"
    if content.deadline_s < end:
        on.axvline(content.deadline_s, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        place = {"xy": (content.deadline_s, 1.0), "xycoords": ("data", "axes fraction"), "va": "bottom"}
        on.annotate("deadline", ha="center", fontsize=8.5, color=MUTED, **place)
    else:
        title += f"; the deadline is at {duration(content.deadline_s)}"
    on.set_yticks(range(len(content.asks)), [ask.device for ask in content.asks], fontsize=8)
    on.set(ylim=(len(content.asks) - 0.4, -0.6), xlim=(0, end))
    on.set_title(title)
    on.grid(axis="y", visible=False)


def _bar(on: Any, row: int, ask: AskRecord, within: tuple[float, float]) -> None:
    """Draws the bar of one ask; `within`: when the round opened, and where the axis ends."""
    opened_s, end = within
    at, ended = ask.asked_s - opened_s, ask.ended_s - opened_s
    phases = (
        (ask.download_s, DOWN, 0.34),
        (ask.compute_s, kind_colour(ask.kind) if ask.kind else FATES["sat out"], 0.72),
        (ask.upload_s, UP, 0.34),
    )
    on.hlines(row, at, min(ended, end), color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    for seconds, colour, height in phases:
        width = max(0.0, min(seconds, end - at))
        on.barh(row, width, left=at, height=height, color=colour, linewidth=0, zorder=2)
        at += seconds
    sign = SIGNS.get(ask.fate)
    if ended > end:
        on.annotate(
            f"{ask.fate}, until {duration(ended)} ", (end, row), ha="right", va="center", fontsize=8,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.6}, color=INK,
        )  # fmt: skip
    elif sign:
        colour = STRONG if ask.fate == "counted" else "#d55e00"
        on.plot(ended, row, sign, color=colour, markersize=5 if sign == "o" else 6.5, zorder=5, clip_on=False)


def _legend(asks: Sequence[AskRecord]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    present = {ask.kind for ask in asks}
    kinds = [kind for kind in KINDS if kind in present] + sorted(present - KINDS.keys() - {""})
    signs = [Line2D([], [], color=STRONG, marker="o", markersize=5, linestyle="", label="counted")]
    if ends := sorted({ask.fate for ask in asks if ask.fate in FATES} - {"sat out", "rested"}):
        signs.append(
            Line2D([], [], color="#d55e00", marker="X", markersize=6.5, linestyle="", label=" or ".join(ends))
        )
    return [
        Patch(color=DOWN, label="download"),
        *(Patch(color=kind_colour(kind), label=f"computing: {kind}") for kind in kinds),
        Patch(color=UP, label="upload"),
        *signs,
    ]
