"""Rounds on SST-2: the label's word at a mask against a new head, back-propagation against scalars alone.

A folder of benchmarks/language_model.py is exported twice, to answer with a word and with a new head, and ten
devices learn from equal shares of a random part of the training sentences. Accuracy is on the test sentences.

    python benchmarks/language_model.py --out runs/sst2-roberta
    python benchmarks/language_rounds.py --model runs/sst2-roberta --out runs/language
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

from tabulate import tabulate

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

from benchmarks.zeroth.on_features import OnFeatures
from device_runtime.cli import main as device_runtime
from device_runtime.simulation.executors.job import PlainExecutor
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds.zeroth_order import FEDMEZO, MEASURED

DATA = os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data")
ANSWERS = {
    "word": ["--prompt", "{text} It was{mask} .", "--words", " terrible, great"],
    "new head": ["--new-head"],
}
LOCAL = {"epochs": 1, "batch": 16, "lr": 0.05, "momentum": 0.0}
ADAM = {"name": "fedadam", "lr": 0.003}
METHODS: dict[str, dict[str, Any]] = {
    "FedAdam, all": {"kinds": [{"name": "full", "settings": LOCAL}], "server": ADAM},
    "FedAdam, LoRA": {"kinds": [{"name": "peft", "settings": {"tunable": "lora", **LOCAL}}], "server": ADAM},
    "FedAdam, bias": {"kinds": [{"name": "peft", "settings": {"tunable": "bias", **LOCAL}}], "server": ADAM},
    "FedAvg, bias": {"kinds": [{"name": "peft", "settings": {"tunable": "bias", **LOCAL}}]},
    "FedMeZO, bias": {"kinds": [{"name": "zeroth-order", "settings": {"tunable": "bias"}}]},
}
"""Plain SGD moves a transformer little: Adam on the mean of the updates (FedAdam) is what learns here."""
MEANS = {"name": "class-means", "until_round": 1}
AFTER = {"from_round": 2}
HEADS: dict[str, tuple[int, dict[str, Any]]] = {
    "class means": (1, {"kinds": [{"name": "class-means"}]}),
    "class means, then ours": (
        1600,
        {"kinds": [MEANS, {"name": "zeroth-order", "settings": {**MEASURED, "tunable": "head"}, **AFTER}]},
    ),
    "FedMeZO": (
        200,
        {"kinds": [{"name": "zeroth-order", "settings": {**FEDMEZO, "tunable": "head"}}]},
    ),
    "DistMeZO-naive": (20, {"kinds": [{"name": "local-zeroth-order", "settings": {"tunable": "head"}}]}),
    "class means, then first order": (
        200,
        {
            "kinds": [
                MEANS,
                {"name": "peft", "settings": {"tunable": "head", "tunables": ()}, **AFTER},
            ]
        },
    ),
}
"""Of the head alone, on features that are computed once: rounds, and what the task says."""


@dataclass
class Course(NullObserver):
    """Accuracies in order, and kB of a device."""

    devices: int
    accuracies: list[float] = field(default_factory=list)
    up: float = 0.0
    down: float = 0.0

    def closed(self, line: SimulatedRound) -> None:
        self.up += line.bytes_up / 1000 / self.devices
        self.down += line.bytes_down / 1000 / self.devices
        if not isnan(line.eval_acc):
            self.accuracies.append(line.eval_acc)


def main() -> None:
    """Each cell is a file of --out, and is not run again."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--samples", type=int, default=1000)
    options.add_argument("--tests", type=int, default=1821)
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--heads", action="store_true", help="the head alone, answered by a word")
    arguments = options.parse_args()
    if arguments.heads:
        done = [run(arguments, method, "word") for method in HEADS]
    else:
        done = [run(arguments, method, answer) for answer in ANSWERS for method in METHODS]
    print(tabulate(done, headers="keys", tablefmt="github"))


def run(options: argparse.Namespace, method: str, answer: str) -> dict[str, Any]:
    """The row of one cell."""
    options.out.mkdir(parents=True, exist_ok=True)
    rounds, task = HEADS[method] if options.heads else (options.rounds, METHODS[method])
    sizes = (options.seed, rounds, options.samples, options.tests, options.length)
    name = f"{method}, head" if options.heads else method
    file = options.out / f"{name}-{answer}-{'-'.join(map(str, sizes))}.json".replace(" ", "_")
    if file.exists():
        return json.loads(file.read_text())
    table = {
        "devices": 10,
        "eval_every": max(1, rounds // 4),
        "data": {
            "source": "sst2", "path": DATA, "partition": "iid",
            "max_train": options.samples, "max_test": options.tests,
        },
        "task": {
            "bundle": str(bundle(options, answer).resolve()), "rounds": rounds, "round_deadline_s": 1e6,
            **task,
        },
    }  # fmt: skip
    course = Course(10)
    executor = OnFeatures if options.heads else PlainExecutor
    simulate(prepare(scenario.load("uniform", table), options.seed), executor, course)
    row = {
        "method": name,
        "answer": answer,
        "rounds": rounds,
        "accuracy, %": f"{100 * course.accuracies[-1]:.1f}",
        "best, %": f"{100 * max(course.accuracies):.1f}",
        "kB up": f"{course.up:.1f}",
        "kB down": f"{course.down:.1f}",
    }
    file.write_text(json.dumps(row))
    print(row, flush=True)
    return row


def bundle(options: argparse.Namespace, answer: str) -> Path:
    """Exported, unless it is there. One that answers by a new head is drawn by the seed."""
    folder = options.out / f"{answer.replace(' ', '-')}-{options.length}-{options.seed}"
    if not (folder / "manifest.json").exists():
        words = ["export", "roberta", "--weights", str(options.model), "--tokenizer", str(options.model)]
        words += [
            "--input",
            str(options.length),
            "--labels",
            "negative,positive",
            "--seed",
            str(options.seed),
        ]
        words += [
            "--tunable",
            "all",
            "--tunable",
            "bias",
            "--tunable",
            "lora:rank=4",
            "--tunable",
            "head",
            *ANSWERS[answer],
        ]
        if device_runtime([*words, "--out", str(folder)]):
            raise SystemExit(1)
    return folder


if __name__ == "__main__":
    main()
