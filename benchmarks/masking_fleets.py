"""Measures what masked sums cost in accuracy, by the smallest group and by the noise of mask helpers.

    nice -n 10 .venv/bin/python benchmarks/masking_fleets.py groups   # 3 seeds: some 15 minutes on one core
    nice -n 10 .venv/bin/python benchmarks/masking_fleets.py noise    # some 15 minutes
    nice -n 10 .venv/bin/python benchmarks/masking_fleets.py --seeds 1 groups noise

Simulated fleets train the shipped digits bundle, whose weights are fresh. Accuracy is that of the served
model, over the last five evaluations (`noise`: of the last one): mean and deviation over seeds.

groups: 60% of the devices are stragglers, and three classes are with them alone. `headline` is the fleet of
the table `ours:headline`: of 40 devices 16 are fast, 8 are mild, 8 are slow, and 8 send 100 bytes a second.
Each sort of straggler has one of the classes. `wider` is a fleet of 20: eight are fast, nine are too slow to
train and have two of the classes, and three have the third class and send 22,000 bytes a second.

noise: 100 equal devices with 14 samples each send full updates in 20 rounds. Learning rates and norms were
chosen at epsilon 5, with one seed.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

from tabulate import tabulate

from benchmarks.papers.places import shared
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario

SIZES = (0, 3, 5, 10)
"""Smallest groups; 0: updates are sent in the clear."""
EPSILONS = (2.0, 5.0, 10.0, 20.0)
DELTA = 1e-3
ROUNDS, DEVICES = 20, 100
HEADLINE = {
    "devices": 40,
    "slow": 200.0,
    "fleet": {"name": "three-strengths-60", **shared().fleets["three-strengths-60"]},
    "data": {
        "partition": "dirichlet",
        "alpha": 0.3,
        "groups": {"mild": {"classes": [7]}, "slow": {"classes": [8]}, "link": {"classes": [9]}},
    },
    "task": {"rounds": 20, "round_deadline_s": 6.5},
}
WIDER = {
    "devices": 20,
    "slow": 20.0,
    "fleet": {
        "name": "fast-slow-link",
        "groups": {
            "fast": {"profile": "pi-5", "share": 0.4},
            "slow": {"profile": "pi-zero-2w", "share": 0.45, "speed": {"factor": 0.35}},
            "link": {"profile": "pi-4", "share": 0.15, "link": {"up_bytes_per_s": 22_000}},
        },
    },
    "data": {
        "partition": "dirichlet",
        "alpha": 0.3,
        "groups": {"slow": {"classes": [7, 8]}, "link": {"classes": [9]}},
    },
    "task": {"rounds": 12, "round_deadline_s": 1.6},
}
FLEETS: dict[str, tuple[Mapping[str, Any], str]] = {
    "headline": (HEADLINE, "fast"),
    "wider": (WIDER, "fast"),
    "wider, all awaited": (WIDER, "all"),
}
"""By name: the fleet, and the devices that its rounds wait for."""
WEAK = slice(7, 10)
CENTRAL = {"epochs": 2, "batch": 16, "lr": 0.05}
LOCAL = {"epochs": 1, "batch": 64, "lr": 0.3}
CLIP_NORM, MAX_NORM = 0.2, 1.0


class Rounds(NullObserver):
    def __init__(self) -> None:
        self.lines: list[SimulatedRound] = []

    def closed(self, line: SimulatedRound) -> None:
        self.lines.append(line)


def run(over: Mapping[str, Any], seed: int) -> list[SimulatedRound]:
    """The rounds of the fleet `uniform`, or of the one that `over` has in its place."""
    watch = Rounds()
    simulate(prepare(scenario.load("uniform", over), seed), observer=watch)
    return watch.lines


def percent(values: Iterable[float]) -> str:
    percents = [100 * value for value in values]
    return f"{mean(percents):.1f}" + (f" ± {stdev(percents):.1f}" if len(percents) > 1 else "")


def by_group(seeds: int) -> None:
    rows = [
        (name, *of_group(fleet, size, wait_for, seeds))
        for name, (fleet, wait_for) in FLEETS.items()
        for size in SIZES
    ]
    head = (
        "fleet",
        "min_group",
        "accuracy, %",
        "stragglers' classes, %",
        "updates not opened",
        "devices that sat out",
    )
    print(tabulate(rows, head, disable_numparse=True), flush=True)


def of_group(fleet: Mapping[str, Any], size: int, wait_for: str, seeds: int) -> tuple[str, ...]:
    """Smallest group, accuracies, and the shares of updates not opened and of devices that sat out."""
    task = {**fleet["task"], "wait_for": wait_for, **({"masks": {"min_group": size}} if size else {})}
    runs = [run({**fleet, "task": task}, seed) for seed in range(seeds)]
    last = [lines[-5:] for lines in runs]
    requests = sum(line.asked for lines in runs for line in lines)
    unopened = sum(line.unopened for lines in runs for line in lines) if size else 0
    idle = sum(line.sat_out for lines in runs for line in lines)
    return (
        str(size or "in the clear"),
        percent(mean(line.eval_acc for line in lines) for lines in last),
        percent(mean(mean(line.eval_acc_by_class[WEAK]) for line in lines) for lines in last),
        f"{unopened / requests:.0%}",
        f"{idle / requests:.0%}",
    )


def noisy(settings: Mapping[str, Any], masks: Mapping[str, Any] | None, seed: int) -> float:
    task = {"rounds": ROUNDS, "round_deadline_s": 1e4, "kinds": [{"name": "full", "settings": settings}]}
    over = {"devices": DEVICES, "eval_every": ROUNDS, "data": {"partition": "iid"}}
    return run({**over, "task": {**task, **({"masks": masks} if masks else {})}}, seed)[-1].eval_acc


def by_epsilon(seeds: int) -> None:
    clear = [percent(noisy(each, None, seed) for seed in range(seeds)) for each in (CENTRAL, LOCAL)]
    rows: list[tuple[str, ...]] = [("none", *clear)]
    for epsilon in EPSILONS:
        masks = {"epsilon": epsilon, "delta": DELTA, "clip_norm": CLIP_NORM}
        term = {"epsilon": epsilon, "delta": DELTA, "rounds": ROUNDS, "max_norm": MAX_NORM}
        central = percent(noisy(CENTRAL, masks, seed) for seed in range(seeds))
        local = percent(noisy({**LOCAL, "terms": {"dp-sgd": term}}, None, seed) for seed in range(seeds))
        rows.append((f"{epsilon:g}", central, local))
    head = (f"epsilon (delta {DELTA:g})", "central noise, accuracy, %", "dp-sgd on devices, accuracy, %")
    print(tabulate(rows, head, disable_numparse=True), flush=True)


TABLES = {"groups": by_group, "noise": by_epsilon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    for table in options.tables:
        TABLES[table](options.seeds)


if __name__ == "__main__":
    main()
