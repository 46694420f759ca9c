"""Draws the time line of one round: each device's download, computing and upload, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from device_runtime.simulation.compare.wording import duration
from device_runtime.simulation.history.records import AskRecord, SimulatedRound

from .canvas import FATES, INK, KINDS, MUTED, PAPER, STRONG, ComparedRuns, Drawing, kind_colour, panels

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
        "it, evenly from the quickest to the slowest. Grey alone: it sat out. Dotted: it waited, or was away."
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
    if any(ask.fate in FATES and ask.fate != "sat out" for ask in asks):
        ends = sorted({ask.fate for ask in asks if ask.fate in FATES and ask.fate != "sat out"})
        signs.append(
            Line2D([], [], color="#d55e00", marker="X", markersize=6.5, linestyle="", label=" or ".join(ends))
        )
    return [
        Patch(color=DOWN, label="download"),
        *(Patch(color=kind_colour(kind), label=f"computing: {kind}") for kind in kinds),
        Patch(color=UP, label="upload"),
        *signs,
    ]
