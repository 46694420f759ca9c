"""Draws the demo in one picture: accuracy, recall of each digit, kinds sent by device, bytes by kind."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from device_runtime.simulation.report import canvas
from device_runtime.strategies.kinds.registry import KINDS

from .fleet import FLEET, holders
from .runs import DemoRun

POLICIES = (
    ("mixed", "#34495e", "every device, by the richest kind that it can afford"),
    ("dropped", "#b03a2e", "stragglers dropped"),
)
"""Policies with their colours, which no kind of update has, so that the two are not confused."""
DEVICE_INCHES = 0.4
"""Inches of height that one more device adds."""


def draw(runs: list[DemoRun], path: Path) -> None:
    """Writes the picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    devices = len(runs[0].fleet)
    height = 7.5 + DEVICE_INCHES * (devices - len(FLEET))
    figure, axes = plt.subplots(2, 2, figsize=(12, height), layout="constrained")
    _accuracy(axes[0, 0], runs)
    _recalls(axes[0, 1], runs)
    _participation(axes[1, 0], next(run for run in runs if run.policy == "mixed"))
    _bytes(axes[1, 1], runs)
    seeds = sorted({run.seed for run in runs})
    figure.suptitle(
        f"{devices} devices, one deadline, digits that only weak ones hold: every device takes part, or "
        f"stragglers are dropped ({len(seeds)} seed{'s' if len(seeds) > 1 else ''})"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _accuracy(axes: Any, runs: list[DemoRun]) -> None:
    for policy, colour, label in POLICIES:
        curves = np.array([[r.eval_acc for r in run.rounds] for run in runs if run.policy == policy])
        rounds = np.arange(1, curves.shape[1] + 1)
        axes.plot(rounds, 100 * curves.mean(0), color=colour, label=label, linewidth=2)
        if len(curves) > 1:
            axes.fill_between(
                rounds, 100 * curves.min(0), 100 * curves.max(0), color=colour, alpha=0.15, linewidth=0
            )
    axes.xaxis.get_major_locator().set_params(integer=True)
    several = len({run.seed for run in runs}) > 1
    title = "Accuracy (mean, and band over all seeds)" if several else "Accuracy"
    axes.set(xlabel="round", ylabel="accuracy of the served model, %", title=title, ylim=(0, 102))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def _participation(axes: Any, run: DemoRun) -> None:
    names = [member.name for member in run.fleet]
    for kind in (kind for kind in KINDS if any(c.kind == kind for c in run.contributions)):
        own = [c for c in run.contributions if c.kind == kind]
        axes.scatter(
            [c.round for c in own],
            [names.index(c.device) for c in own],
            color=canvas.kind_colour(kind),
            marker="s",
            s=90,
            label=kind,
        )
    axes.set(
        xlabel="round", title=f"Who sent which kind (seed {run.seed})", xlim=(0.3, len(run.rounds) + 0.7)
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_yticks(range(len(names)), [f"{m.name} ({m.label})" for m in run.fleet])
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=6, fontsize=8, columnspacing=1.0)


def _bytes(axes: Any, runs: list[DemoRun]) -> None:
    sent: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for contribution in (c for run in runs if run.policy == "mixed" for c in run.contributions):
        sent[contribution.kind].append(contribution.bytes_up)
    medians = {kind: median(sizes) for kind, sizes in sent.items() if sizes}
    colours = [canvas.kind_colour(kind) for kind in medians]
    bars = axes.barh(list(medians), list(medians.values()), color=colours)
    axes.bar_label(bars, [f"{size:,.0f}" for size in medians.values()], padding=3)
    axes.set_xscale("log")
    axes.set(
        xlabel="bytes up per device and round, on the wire (median, log)", title="What a kind of update sends"
    )
    axes.margins(x=0.25)
    axes.invert_yaxis()


def _recalls(axes: Any, runs: list[DemoRun]) -> None:
    """Draws the recall of each digit after the last round, by policy: the mean, and the range of seeds."""
    of = holders(runs[0].fleet)
    digits = [digit for holder in of for digit in holder.digits]
    width = 0.4
    for offset, (policy, colour, label) in enumerate(POLICIES):
        last = 100 * np.array([run.recalls[-1] for run in runs if run.policy == policy])[:, digits]
        mean = last.mean(0)
        spread = np.array([mean - last.min(0), last.max(0) - mean]) if len(last) > 1 else None
        at = np.arange(len(digits)) + (offset - 0.5) * width
        axes.bar(at, mean, width, color=colour, label=label, yerr=spread, error_kw={"elinewidth": 1})
    begin = 0
    for number, holder in enumerate(of):
        end = begin + len(holder.digits)
        if number:
            axes.axvspan(begin - 0.5, end - 0.5, color=canvas.FAINT, alpha=0.5, linewidth=0, zorder=0)
            axes.axvline(begin - 0.5, color=canvas.PAPER, linewidth=2, zorder=0)
        name = f"{holder.name}\nalone" if number else "shared by " + holder.name
        axes.text((begin + end - 1) / 2, 104, name, ha="center", va="bottom", fontsize=8)
        begin = end
    axes.set_xticks(range(len(digits)), [str(digit) for digit in digits])
    axes.set(xlabel="digit, by who holds its training samples", ylabel="recall, %", ylim=(0, 118))
    axes.set(title="Recall of each digit after the last round", xlim=(-0.5, len(digits) - 0.5))
    axes.set_yticks(range(0, 101, 20))
