"""Recall of each digit where three of ten are with slow boards alone; draws docs/closed-form-head.png.

    .venv/bin/python benchmarks/closed_form_head.py [--seeds 2] [--picture docs/closed-form-head.png]

The scenario is the preset `straggler-classes`, as `device-runtime simulate` runs it: full updates alone with
stragglers dropped; mixed rounds with the trained head; the same with the closed-form head; and full updates
without a deadline, as if there were no stragglers. Means of the last five rounds and of the seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario as policies
from device_runtime.simulation.scenarios.scenario import load

LAST = 5
"""Rounds whose recalls are averaged."""
RUNS = (
    ("dropped", "drop", "trained", "#b03a2e"),
    ("mixed, trained head", "choose", "trained", "#9aa4af"),
    ("mixed, closed-form head", "choose", "closed-form", "#0072b2"),
    ("no stragglers", "no-stragglers", "trained", "#34495e"),
)
"""Each with its policy, its head and its colour."""
ALONE = (7, 8, 9)
"""The digits that only slow boards hold."""


class Rounds(NullObserver):
    """An observer that keeps every round's line."""

    def __init__(self) -> None:
        self.lines: list[SimulatedRound] = []

    def closed(self, line: SimulatedRound) -> None:
        self.lines.append(line)


def recalls(policy: str, head: str, seed: int) -> NDArray[np.float64]:
    """(10,): of each digit, in percent; and behind them the accuracy over all."""
    scenario = policies.of_policy(load("straggler-classes", {"task": {"head": head}}), policy)
    rounds = Rounds()
    simulate(prepare(scenario, seed), observer=rounds)
    last = rounds.lines[-LAST:]
    return 100 * np.mean([[*line.eval_acc_by_class, line.eval_acc] for line in last], axis=0)


def draw(measured: dict[str, NDArray[np.float64]], seeds: int, path: Path) -> None:
    """`measured`: for each run, (seeds, 11)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(11, 7.6), height_ratios=(1, 1.35), layout="constrained"
    )
    _sketch(above)
    width = 0.8 / len(RUNS)
    for place, (name, *_, colour) in enumerate(RUNS):
        mean = measured[name].mean(0)
        at = np.arange(10) + (place - (len(RUNS) - 1) / 2) * width
        below.bar(at, mean[:10], width, color=colour, label=f"{name}: {mean[10]:.1f}% of all samples")
    below.axvspan(min(ALONE) - 0.5, max(ALONE) + 0.5, color="#d3d9e0", alpha=0.5, linewidth=0, zorder=0)
    below.text(np.mean(ALONE), 103, "held by slow boards alone", ha="center", va="bottom", fontsize=9)
    below.set_xticks(range(10))
    below.set(
        xlabel="digit",
        ylabel="recall, %",
        ylim=(0, 112),
        xlim=(-0.5, 9.5),
        title=f"Scenario straggler-classes: recall of each digit, last {LAST} of 15 rounds, {seeds} seeds",
    )
    below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


BOXES = (
    (0.00, 0.70, 0.27, "fast devices\nupdate, counts, means, mean of f f^T", "#0072b2"),
    (0.00, 0.36, 0.27, "slow devices\nsmall update, counts, means,\nmean of f f^T", "#009e73"),
    (0.00, 0.02, 0.27, "devices behind a thin link\ncounts, means as int8", "#e69f00"),
    (0.39, 0.70, 0.25, "merge of the updates:\nextractor, and the trained head", "#5b6673"),
    (0.39, 0.19, 0.25, "pool of the statistics:\nN, S of each class, covariance", "#5b6673"),
    (0.76, 0.70, 0.24, "running mean\nof the extractor", "#22313f"),
    (0.76, 0.19, 0.24, "head in closed form\nW, b = LDA of the pool", "#22313f"),
)
"""Left, bottom and width of each box, its text and its colour."""
ARROWS = ((0, 3), (0, 4), (1, 3), (1, 4), (2, 4), (3, 5), (4, 6))
HIGH = 0.28


def _sketch(axes: Any) -> None:
    """Devices, what they send, and what becomes of it."""
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.02, 1.12), title="What devices send, and what is served")
    axes.set_axis_off()
    for left, bottom, width, text, colour in BOXES:
        axes.add_patch(_box(left, bottom, width, colour))
        axes.text(
            left + width / 2, bottom + HIGH / 2, text, ha="center", va="center", fontsize=9, color="white"
        )
    for begin, end in ARROWS:
        left, bottom, width, *_ = BOXES[begin]
        to_left, to_bottom, *_ = BOXES[end]
        axes.annotate(
            "",
            (to_left, to_bottom + HIGH / 2),
            (left + width, bottom + HIGH / 2),
            arrowprops={"arrowstyle": "->", "color": "#5b6673", "shrinkA": 2, "shrinkB": 2},
        )
    axes.text(0.88, 0.585, "served together", ha="center", va="center", fontsize=10, color="#22313f")


def _box(left: float, bottom: float, width: float, colour: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        (left, bottom), width, HIGH, boxstyle="round,pad=0,rounding_size=0.02", facecolor=colour, linewidth=0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--picture", type=Path, default=Path("docs/closed-form-head.png"))
    options = parser.parse_args()
    measured = {}
    for name, policy, head, _ in RUNS:
        measured[name] = np.array([recalls(policy, head, seed) for seed in range(options.seeds)])
        print(f"{name}: done", flush=True)
    rows = [
        (name, *(f"{value:.1f}" for value in runs.mean(0)[[10, *ALONE]]), f"{runs.mean(0)[:7].mean():.1f}")
        for name, runs in measured.items()
    ]
    headers = ("", "all samples", *(f"digit {digit}" for digit in ALONE), "digits 0 to 6")
    print(tabulate(rows, headers, disable_numparse=True))
    draw(measured, options.seeds, options.picture)


if __name__ == "__main__":
    main()
