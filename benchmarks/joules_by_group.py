"""Where do the joules of mixed rounds go, beside those of rounds that drop stragglers?

    .venv/bin/python -m benchmarks.joules_by_group        # two seeds: two minutes; exports bundles with torch

Two fifths of a fleet are fast, a fifth each mild, slow, and behind a link of 300 bytes a second. Printed are
the modelled joules of 20 rounds, and by group the asks that were answered and the joules of each. In two more
rows slow devices may work on for 4 and 8 deadlines, and send their update late. Nothing is trained, as energy
does not depend on it.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import msgspec
from tabulate import tabulate

from benchmarks.papers import exporting
from benchmarks.papers.places import data_folder, shared
from benchmarks.papers.sampling import spec_of
from device_runtime.simulation.clock.sampling import DeviceSampler, OpenedRound, PendingUpdate
from device_runtime.simulation.executors.job import ExecutorInputs, FailedJob, TrainingJob
from device_runtime.simulation.history.records import AskRecord, NullObserver
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario

GROUPS = {
    "fast": {"profile": "pi-5", "share": 0.4},
    "mild": {"profile": "pi-zero-2w", "share": 0.2, "speed": {"factor": 2.333}},
    "slow": {"profile": "pi-zero-2w", "share": 0.2, "speed": {"factor": 0.311}},
    "link": {"profile": "pi-5", "share": 0.2, "link": {"up_bytes_per_s": 300}},
}
ROWS = {"dropped": ("drop", 1), "mixed": ("choose", 1), "slow: 4": ("choose", 4), "slow: 8": ("choose", 8)}
"""The policy, and the deadlines that slow devices may work for."""


@dataclass(frozen=True)
class Case:
    """Samples and their division. Devices are `slow` times slower than boards: rounds last seconds.

    Of `devices`, `per_round` are drawn for each round.
    """

    data: str
    network: str
    division: Mapping[str, Any]
    devices: int
    per_round: int
    slow: float
    deadline_s: float

    def own(self, mild: int, slow: int, link: int) -> Case:
        """The case in which each group of stragglers alone holds a class."""
        groups = {"mild": mild, "slow": slow, "link": link}
        classes = {group: {"classes": [label]} for group, label in groups.items()}
        return replace(self, division={**self.division, "groups": classes})


DIRICHLET = {"partition": "dirichlet", "alpha": 0.3}
FEWER = {"max_train": 4000, "max_test": 1000}
DIGITS = Case("digits", "digits-wrn-10-1", DIRICHLET, 40, 12, 40, 3.0)
CIFAR10 = Case("cifar10-or-16", "cnn-quarter-16", {**DIRICHLET, **FEWER}, 60, 15, 65, 2.9)
BY_SPEAKER = {"partition": "natural", "groups_per_client": 1, "min_samples": 5}
CASES = {
    "digits, Dirichlet(0.3)": DIGITS,
    "digits, own classes": DIGITS.own(7, 8, 9),
    "CIFAR-10, Dirichlet(0.3)": CIFAR10,
    "CIFAR-10, own classes": CIFAR10.own(0, 1, 2),
    "words by speaker": Case("speech", "cnn-quarter", BY_SPEAKER, 150, 20, 30, 2.9),
}


class Untrained:
    """An executor that trains nothing: each update is refused, after its device has spent its energy."""

    name = "untrained"

    def __init__(self, inputs: ExecutorInputs) -> None:
        pass

    def run(self, bases: Mapping[str, Any], jobs: Sequence[TrainingJob]) -> Iterator[FailedJob]:
        return (FailedJob("nothing is trained") for _ in jobs)

    def close(self) -> None:
        pass


class LongerDeadlines(DeviceSampler):
    """Gives slow devices more time than the round has."""

    deadlines = 1

    def _flight(self, device: int, opening: OpenedRound, draws: Any) -> PendingUpdate:
        if self._devices.fleet.group(device) == "slow":
            closes_at = opening.now + self.deadlines * (opening.closes_at - opening.now)
            opening = replace(opening, closes_at=closes_at)
        return super()._flight(device, opening, draws)


class Joules(NullObserver):
    """The joules of each answered ask by group, and those of all asks."""

    def __init__(self) -> None:
        self.by_group: dict[str, list[float]] = {group: [] for group in GROUPS}
        self.all = 0.0

    def asked(self, ask: AskRecord) -> None:
        self.all += ask.energy_j
        if ask.kind:
            self.by_group[ask.group].append(ask.energy_j)


def run(case: Case, policy: str, deadlines: int, seed: int) -> Joules:
    tables, folder = shared(), data_folder(None, os.environ)
    entry = tables.entry(case.data, "cpu")
    samples = exporting.BundleSamples(entry, folder.form(entry, "cpu"))
    data = msgspec.to_builtins(spec_of(samples, case.division, folder))
    table = {
        "devices": case.devices,
        "slow": case.slow,
        "eval_every": 0,
        "fleet": {"name": "three-strengths", "groups": GROUPS},
        "data": {name: value for name, value in data.items() if value is not None},
        "task": {
            "bundle": exporting.bundle(case.network, tables, samples, folder),
            "rounds": 20,
            "devices_per_round": case.per_round,
            "round_deadline_s": case.deadline_s,
            "head": "closed-form",
            **({"max_staleness": 40} if deadlines > 1 else {}),
        },
    }
    LongerDeadlines.deadlines, joules = deadlines, Joules()
    inputs = prepare(scenario.of_policy(scenario.load("uniform", table), policy), seed)
    simulate(inputs, Untrained, joules)
    return joules


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that no update came, in each round
    from device_runtime.simulation.rounds import run as rounds

    rounds.DeviceSampler = LongerDeadlines  # type: ignore[misc]
    lines = []
    for name, case in CASES.items():
        for row, (policy, deadlines) in ROWS.items():
            runs = [run(case, policy, deadlines, seed) for seed in range(options.seeds)]
            cells = []
            for group in GROUPS:
                joules = [ask_j for each in runs for ask_j in each.by_group[group]]
                cells.append(f"{len(joules) / len(runs):.0f} x {mean(joules):.1f}" if joules else "-")
            lines.append((name, row, f"{mean(each.all for each in runs):,.0f}", *cells))
            print(*lines[-1], flush=True)
    print(tabulate(lines, headers=("data", "", "joules", *GROUPS), disable_numparse=True))


if __name__ == "__main__":
    main()
