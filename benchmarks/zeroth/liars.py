"""Lying devices in rounds of zeroth-order scalars: what a few do to the plain mean, and to each rule.

    .venv/bin/python benchmarks/zeroth_order.py liars                   # equal shares of the digits
    .venv/bin/python benchmarks/zeroth_order.py liars --alpha 0.5       # uneven classes (Dirichlet)

Ten simulated devices train the head of the shipped bundle for handwritten digits by two-point scalars along
shared directions; liars send theirs turned round, turned round and ten times as long, or a million each.
Accuracy on the test digits after the last round, the mean over the seeds.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.executors.job import Executor, ExecutorInputs, FailedJob, Result, TrainingJob
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.robust import RULES

from .heads import Heads

ALIKE = {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0}}}
DEVICES = 10
SHARES = (0.1, 0.2, 0.3)
SETTINGS: Mapping[str, Any] = {"num_z": 8, "lr": 0.3, "tunable": "head"}

Scalars = NDArray[np.float32]
LIES: Mapping[str, Callable[[Scalars], Scalars]] = {
    "times -1": lambda g: -g,
    "times -10": lambda g: np.float32(-10) * g,
    "a million": lambda g: np.full_like(g, 1e6),
}


@dataclass(frozen=True)
class Setting:
    """`alpha` of the Dirichlet partition; None: every device has an equal share of every class."""

    rounds: int
    alpha: float | None


class Lying:
    """An executor, the first `liars` of whose devices lie."""

    def __init__(self, inner: Executor, liars: int, lie: Callable[[Scalars], Scalars]) -> None:
        self._inner, self._liars, self._lie = inner, liars, lie
        self.name = inner.name

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        for job, update in zip(jobs, self._inner.run(bases, jobs), strict=True):
            if isinstance(update, FailedJob) or job.device >= self._liars:
                yield update
            else:
                yield replace(update, tensors={"g": self._lie(update.tensors["g"])})

    def close(self) -> None:
        self._inner.close()


class Last(NullObserver):
    """Holds the accuracy of the round that was evaluated last."""

    eval_acc = nan

    def closed(self, line: SimulatedRound) -> None:
        self.eval_acc = line.eval_acc


def accuracy(setting: Setting, rule: str, liars: int, lie: str, seed: int) -> float:
    """At the end of a run in which so many devices lie."""
    uneven = {"partition": "dirichlet", "alpha": setting.alpha}
    robust = {
        "robust": rule,
        "robust_trim": max(SHARES),
        "robust_byzantine": round(max(SHARES) * DEVICES),
    }
    table = {
        "fleet": ALIKE,
        "devices": DEVICES,
        "eval_every": setting.rounds,
        "data": {"partition": "iid"} if setting.alpha is None else uneven,
        "task": {
            "rounds": setting.rounds,
            "round_deadline_s": 1e5,
            "kinds": [{"name": "zeroth-order", "settings": SETTINGS}],
            **({} if rule == "none" else robust),
        },
    }
    last = Last()

    def executor(inputs: ExecutorInputs) -> Executor:
        return Lying(Heads(inputs), liars, LIES[lie])

    simulate(prepare(scenario.load("uniform", table), seed), executor, last)
    return last.eval_acc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=100, help="of each run (default: 100)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each cell (default: 2)")
    parser.add_argument("--alpha", type=float, help="of a Dirichlet partition (default: equal shares)")
    parser.add_argument("--rules", default=",".join(RULES), help="comma separated (default: all)")


def run(args: argparse.Namespace) -> None:
    logging.getLogger("simulation").setLevel(logging.ERROR)  # not who was shortened in each round
    setting = Setting(args.rounds, args.alpha)

    def cell(rule: str, share: float, lie: str) -> str:
        liars = round(share * DEVICES)
        return f"{mean(accuracy(setting, rule, liars, lie, seed) for seed in range(args.seeds)):.0%}"

    columns = [(lie, share) for lie in LIES for share in SHARES]
    names = ["rule", "all honest", *(f"{share:.0%} {lie}" for lie, share in columns)]
    rows = []
    for rule in args.rules.split(","):
        honest = cell(rule, 0.0, next(iter(LIES)))
        rows.append([rule, honest, *(cell(rule, share, lie) for lie, share in columns)])
        print(f"{rule}: {', '.join(rows[-1][1:])}", flush=True)
    print(tabulate(rows, names, tablefmt="github"))
