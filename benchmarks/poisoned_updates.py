"""Measures how much accuracy one lying device of ten costs by its updates, for each kind and each lie.

    .venv/bin/python benchmarks/poisoned_updates.py [--task fedavg fedadam ..] [--lie .. ..] [--alpha 0.3]
        [--first 6] [--rounds 16]

Ten equal devices train a network of one hidden layer on digits, by default settings and without a robust
rule. One device lies, in one round or in every round from there on; what it sends passes the checks of the
aggregator. The figures: points of accuracy of the served model below the run without the lie at most, and in
how many rounds it is more than two points below. The last column is the loss in the last round.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.executors.job import Executor, PlainExecutor, Result, TrainingJob
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios.scenario import load
from device_runtime.strategies.interface.device_half import FEW_SHOT, Update
from device_runtime.strategies.statistics.class_statistics import PREFIX

DEVICES, LARGEST = 10, 1_000_000
"""The fleet, and the largest number of samples that a default task lets a device claim."""
BACK = 0.02
"""The accuracy within which the model counts as unharmed."""


def kinds(*names: str, **settings: Any) -> dict[str, Any]:
    return {"kinds": [{"name": name, "settings": settings} for name in names]}


def full(server: str) -> dict[str, Any]:
    return {**kinds("full"), "server": {"name": server}}


TASKS: Mapping[str, dict[str, Any]] = {
    "fedavg": full("fedavg"),
    "fedavgm": full("fedavgm"),
    "fedadagrad": full("fedadagrad"),
    "fedadam": full("fedadam"),
    "fedyogi": full("fedyogi"),
    "buffer of 1": {**kinds("full"), "buffer_size": 1},
    "few-shot": kinds("few-shot"),
    "class-means": kinds("class-means"),
    "scalars, absolute": kinds("zeroth-order", sizing="absolute", num_z=64, sides=1, lr=0.03),
    "scalars, relative": kinds("zeroth-order", sizing="relative", num_z=64, sides=1, lr=0.3),
    "full+few-shot": kinds("full+few-shot"),
    "default kinds": {},
}
Lie = Callable[[Tensors, Tensors, np.random.Generator], Tensors]
"""Makes false tensors of true ones and of where they are measured from: the base's, or zeros."""


def scaled(factor: float) -> Lie:
    def lie(sent: Tensors, start: Tensors, rng: np.random.Generator) -> Tensors:
        return {name: start[name] + np.float32(factor) * (sent[name] - start[name]) for name in sent}

    return lie


def zeros(sent: Tensors, start: Tensors, rng: np.random.Generator) -> Tensors:
    return {name: np.zeros_like(value) for name, value in sent.items()}


def noise(sent: Tensors, start: Tensors, rng: np.random.Generator) -> Tensors:
    """Random changes of the honest length."""
    drawn = {name: rng.normal(size=value.shape) for name, value in sent.items()}
    longer = length({name: sent[name] - start[name] for name in sent}) / length(drawn)
    return {name: (start[name] + longer * drawn[name]).astype(np.float32) for name in sent}


def length(tensors: Tensors) -> float:
    return float(np.sqrt(sum(float(np.square(value.astype(np.float64)).sum()) for value in tensors.values())))


LIES: Mapping[str, tuple[Lie, float]] = {
    "10,000 times as long, backwards": (scaled(-1e4), 1.0),
    "10,000 times as long, backwards, 1,000,000 samples": (scaled(-1e4), float("inf")),
    "3 times as long, backwards": (scaled(-3.0), 1.0),
    "backwards": (scaled(-1.0), 1.0),
    "backwards, 1,000,000 samples": (scaled(-1.0), float("inf")),
    "random, of honest length": (noise, 1.0),
    "zeros": (zeros, 1.0),
    "unchanged, 1,000,000 samples": (scaled(0.0), float("inf")),
}
"""The lie, and how many times its samples the device claims."""


@dataclass(frozen=True)
class Liar:
    """Lies of device 0 in these rounds."""

    lie: Lie
    claimed: float
    rounds: range

    def lie_of(self, update: Update, job: TrainingJob, base: Tensors) -> Update:
        own = {
            name: value
            for name, value in update.tensors.items()
            if value.dtype == np.float32 and not name.startswith(PREFIX)
        }
        start = {}
        for name, value in own.items():
            base_value = base.get(name.removeprefix(FEW_SHOT))
            start[name] = (
                base_value if base_value is not None and base_value.shape == value.shape else 0 * value
            )
        lies = self.lie(own, start, np.random.default_rng(job.round))
        count = min(LARGEST, update.num_examples * self.claimed)
        content = {**update.tensors, **{name: np.asarray(value, np.float32) for name, value in lies.items()}}
        counted = "counts" in content or any(name.startswith(PREFIX) for name in content)
        return replace(update, tensors=content, num_examples=update.num_examples if counted else int(count))


class LyingExecutor:
    """An executor of which one device lies."""

    name = "lying"

    def __init__(self, inner: Executor, liar: Liar | None) -> None:
        self._inner, self._liar = inner, liar

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        for job, update in zip(jobs, self._inner.run(bases, jobs), strict=True):
            liar = self._liar
            if liar and job.device == 0 and job.round in liar.rounds and isinstance(update, Update):
                yield liar.lie_of(update, job, bases[job.base])
            else:
                yield update

    def close(self) -> None:
        self._inner.close()


class Lines(NullObserver):
    """Keeps each round's figures."""

    def __init__(self) -> None:
        self.lines: list[SimulatedRound] = []

    def closed(self, line: SimulatedRound) -> None:
        self.lines.append(line)


def accuracies(scenario: dict[str, Any], liar: Liar | None) -> NDArray[np.float64]:
    """The served model's accuracy after each round."""
    lines = Lines()
    simulate(
        prepare(load("uniform", scenario), 0),
        lambda inputs: LyingExecutor(PlainExecutor(inputs), liar),
        lines,
    )
    return np.array([line.eval_acc for line in lines.lines])


def scenario_of(task: Mapping[str, Any], alpha: float, rounds: int, bundle: Path) -> dict[str, Any]:
    return {
        "fleet": {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0}}},
        "devices": DEVICES,
        "data": {"source": "digits", "partition": "dirichlet", "alpha": alpha},
        "task": {"bundle": str(bundle), "rounds": rounds, "round_deadline_s": 1000.0, **task},
    }


def exported(folder: Path) -> Path:
    """The bundle of a network of one hidden layer."""
    import torch

    from device_runtime.models.bundles.inputs import InputSpec
    from device_runtime.models.export.export import ExportSpec, export

    torch.manual_seed(0)
    body = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    return export(body, ExportSpec("one-layer", InputSpec((1, 8, 8)), tuple("0123456789")), folder).path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--lie", nargs="+", default=list(LIES), choices=list(LIES))
    parser.add_argument("--alpha", type=float, default=0.3)
    parser.add_argument("--first", type=int, default=6, help="the round of the first lie")
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    first = options.first
    with tempfile.TemporaryDirectory() as folder:
        bundle = exported(Path(folder) / "one-layer")
        for name in options.task:
            rounds = options.rounds * (DEVICES if TASKS[name].get("buffer_size") else 1)
            begin = first * (rounds // options.rounds)
            scenario = scenario_of(TASKS[name], options.alpha, rounds, bundle)
            honest = accuracies(scenario, None)
            print(f"{name}, nobody lies:", " ".join(f"{100 * value:.1f}" for value in honest))
            rows: list[list[Any]] = []
            for lie in options.lie:
                row: list[Any] = [lie]
                for when in (range(begin, begin + 1), range(begin, rounds + 1)):
                    loss = (honest - accuracies(scenario, Liar(*LIES[lie], when)))[begin - 1 :]
                    row += [
                        f"{100 * loss.max():.1f}",
                        int((loss > BACK + 1e-9).sum()),
                        f"{100 * loss[-1]:.1f}",
                    ]
                rows.append(row)
            headers = [
                "lie",
                *(f"{when}: {what}" for when in ("once", "on") for what in ("points", "rounds", "last")),
            ]
            print(tabulate(rows, headers, disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
