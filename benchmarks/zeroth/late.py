"""Scalars that are always a round late: counted along their own directions, or dropped.

    .venv/bin/python benchmarks/zeroth_order.py late                    # equal shares of the digits
    .venv/bin/python benchmarks/zeroth_order.py late --alpha 0.2        # uneven classes (Dirichlet)

Three of ten devices answer each round when the next is open. "none is late" is what that costs; "dropped"
leaves them out; "counted" takes their scalars as a step along the directions of their round, by the share
that the default `staleness_weight` leaves them, and "counted whole" with a `staleness_weight` of 0. Accuracy
on the test digits after the last round: mean and standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from tabulate import tabulate

from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.executors.job import TrainingJob, base_key
from device_runtime.simulation.rounds.learning import RoundEvaluator
from device_runtime.simulation.rounds.run import PreparedRun, prepare
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import Late, Update
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.merging.folding import Folding

from .heads import Heads
from .liars import ALIKE, DEVICES

BUNDLE = "digits-wrn-10-1"
LATE = 3
WAYS: Mapping[str, float | None] = {
    "none is late": None,
    "dropped": None,
    "counted": 0.5,
    "counted whole": 0.0,
}
"""The `staleness_weight` of those that count late scalars."""


@dataclass(frozen=True)
class Course:
    """What one run is of."""

    way: str
    rounds: int
    kind: ZerothOrder
    task: Task


class Learning:
    """Rounds by hand: the device's and the aggregator's own code, with nothing between."""

    def __init__(self, prepared: PreparedRun, course: Course) -> None:
        self._prepared, self._course = prepared, course
        self._heads = Heads(prepared.inputs)
        self.weights = [prepared.inputs.bundle.weights()]
        """What each round distributes."""

    def round(self, number: int) -> None:
        course = self._course
        behind = LATE if course.way != "none is late" else 0
        folding = Folding({course.kind.name: course.kind}, self._model(number))
        if number > 1 and WAYS[course.way] is not None:
            late = Late(number - 1, course.task.round_seed(number - 1), course.task.late_share(1))
            for update in self._updates(number - 1, range(LATE)):
                folding.add(
                    Update(update.kind, update.tensors, update.num_examples, 0.0, late=late),
                    update.num_examples,
                )
        for update in self._updates(number, range(behind, DEVICES)):
            folding.add(update, update.num_examples)
        self.weights.append(folding.merged()[0].base)

    def _model(self, number: int) -> RoundModel:
        manifest, seed = self._prepared.inputs.bundle.manifest, self._course.task.round_seed(number)
        return RoundModel(manifest, self.weights[number - 1], number, seed)

    def _updates(self, number: int, devices: Sequence[int]) -> list[Update]:
        """What these devices send of a round."""
        key, seed = base_key(number), self._course.task.round_seed(number)
        jobs = [TrainingJob(device, f"device-{device}", self._course.kind, seed, key) for device in devices]
        updates = self._heads.run({key: self.weights[number - 1]}, jobs)
        return [update for update in updates if isinstance(update, Update)]


def accuracy(prepared: PreparedRun, course: Course) -> float:
    learning = Learning(prepared, course)
    for number in range(1, course.rounds + 1):
        learning.round(number)
    served: Tensors = learning.weights[-1]
    evaluate = RoundEvaluator(prepared.inputs.bundle, prepared.data, course.rounds, course.rounds)
    return evaluate(course.rounds, served, served).eval_acc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=100, help="of each run (default: 100)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each cell (default: 5)")
    parser.add_argument("--alpha", type=float, help="of a Dirichlet partition (default: equal shares)")
    parser.add_argument("--lr", default="0.1,0.3", help="step sizes, comma separated")


def run(args: argparse.Namespace) -> None:
    data = {"partition": "iid"} if args.alpha is None else {"partition": "dirichlet", "alpha": args.alpha}
    simulated = scenario.load("uniform", {"fleet": ALIKE, "devices": DEVICES, "data": data})
    accuracies: dict[tuple[str, float], list[float]] = {}
    for seed in range(args.seeds):
        prepared = prepare(simulated, seed)
        tasks = {
            way: Task(bundle=BUNDLE, seed=seed, staleness_weight=stale or 0.0) for way, stale in WAYS.items()
        }
        for lr in map(float, args.lr.split(",")):
            kind = ZerothOrder(num_z=8, lr=lr, tunable="head")
            for way in WAYS:
                reached = accuracy(prepared, Course(way, args.rounds, kind, tasks[way]))
                accuracies.setdefault((way, lr), []).append(reached)
    sizes = sorted({lr for _, lr in accuracies})
    rows = [[way, *(_cell(accuracies[way, lr]) for lr in sizes)] for way in WAYS]
    print(tabulate(rows, ["late scalars", *(f"lr {lr:g}" for lr in sizes)], tablefmt="github"))


def _cell(values: list[float]) -> str:
    return f"{mean(values):.1%}" + (f" ± {100 * stdev(values):.1f}" if len(values) > 1 else "")
