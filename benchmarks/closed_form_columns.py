"""Compares systems on values, flags and reconstruction, where stragglers alone hold a region of the data.

    .venv/bin/python benchmarks/closed_form_columns.py --out columns.json [--seeds 5] [--only regression]

Data is made from a seed: a regression of two values from twelve (R2 x 100), four flags from twelve values
(label accuracy in %), and readings of a machine in ten modes, of which anomalies are readings with two
channels swapped (AUROC x 100). Each is divided twice: three tenths of the target, two flags, or three modes
are with stragglers alone; and by Dirichlet(0.3). The fleet and the deadline are those of table `ours:mixed`,
60% stragglers. No kinds are named. Means of the last five rounds, at equal rounds, modelled time and modelled
energy; of the AUROC that of the last round. What is in the file is not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle, write_part
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.training.evaluation import evaluate
from device_runtime.simulation.history.metrics import Axis, Curve, accuracy
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario as scenarios

INPUTS, TRAIN, TEST, MODES, LAST, ROUNDS = 12, 4000, 1000, 10, 5, 20
POLICIES = {
    "no stragglers": ("no-stragglers", "auto"),
    "mixed": ("choose", "auto"),
    "mixed, trained head": ("choose", "trained"),
    "dropped": ("drop", "auto"),
    "dropped, trained head": ("drop", "trained"),
    "FedAvg+": ("fedavg+", "auto"),
    "HeteroFL": ("heterofl", "auto"),
}
"""The policy and the served head of each column."""
TERMS: Mapping[str, Axis] = {"rounds": "rounds", "time": "time", "energy": "energy"}
FLEET = {
    "name": "three-strengths",
    "groups": {
        "fast": {"profile": "pi-5", "share": 0.4},
        "mild": {"profile": "pi-zero-2w", "share": 0.2, "speed": {"factor": 2.333}},
        "slow": {"profile": "pi-zero-2w", "share": 0.2, "speed": {"factor": 0.311}},
        "link": {"profile": "pi-5", "share": 0.2, "link": {"up_bytes_per_s": 100}},
    },
}
SLOW, DEADLINE_S = 80_000.0, 30.0
"""Every board is so many times slower; of a round, 2.6 full updates of a fast device."""


@dataclass(frozen=True)
class Case:
    """A task: its network and loss, and the tenths, flags or modes of each group of stragglers alone."""

    network: str
    settings: dict[str, Any]
    labels: tuple[str, ...]
    loss: str
    compared: str
    alone: tuple[int, int, int]


CASES = {
    "regression": Case("mlp", {"hidden": 32, "classes": 2}, ("load", "wear"), "mse", "values", (7, 8, 9)),
    "flags": Case("mlp", {"hidden": 32, "classes": 4}, tuple("abcd"), "bce", "flags", (1, 2, 3)),
    "anomalies": Case(
        "autoencoder", {"hidden": 32, "code": 4}, ("normal", "anomaly"), "mse", "input", (7, 8, 9)
    ),
}
DIVISIONS = ("own regions", "Dirichlet(0.3)")


def samples(name: str, seed: int) -> dict[str, NDArray[Any]]:
    """x_train, y_train, x_test, y_test, and groups, the regions of training samples."""
    rng = np.random.default_rng(seed)
    count = TRAIN + TEST
    x = rng.normal(size=(count, INPUTS)).astype(np.float32)
    hidden = np.tanh(x @ rng.normal(size=(INPUTS, 16)) / 2)
    if name == "regression":
        y = hidden @ rng.normal(size=(16, 2)) + 0.2 * rng.normal(size=(count, 2))
        y = (y - y.mean(axis=0)) / y.std(axis=0)
    elif name == "flags":
        y = hidden @ rng.normal(size=(16, 4)) + 0.3 * rng.normal(size=(count, 4))
        y = y > np.quantile(y, 0.7, axis=0)
    else:
        y = rng.integers(0, MODES, count)
        bases = rng.normal(size=(MODES, 2, INPUTS))
        along = rng.normal(size=(count, 2))
        x = np.einsum("nk,nkd->nd", along, bases[y]) + 0.1 * x + 2 * rng.normal(size=(MODES, INPUTS))[y]
        x = (x - x.mean(axis=0)) / x.std(axis=0)
    regions = y if y.ndim == 1 else y.argmax(axis=1)
    if name == "regression":
        regions = np.searchsorted(np.quantile(y[:, 0], np.arange(1, 10) / 10), y[:, 0])
    y = np.zeros(count, np.int64) if y.ndim == 1 else y.astype(np.float32)  # all readings are normal
    arrays = {"x_train": x[:TRAIN], "y_train": y[:TRAIN], "x_test": x[TRAIN:], "y_test": y[TRAIN:]}
    arrays |= {"groups": regions[:TRAIN].astype(np.int64)}
    return {key: value.astype(np.float32) if key[0] == "x" else value for key, value in arrays.items()}


def bundle_of(case: Case, folder: Path) -> Bundle:
    """The bundle, with a part of half its width."""
    import torch

    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    settings = {"inputs": INPUTS, **case.settings}
    spec = ExportSpec(
        "columns", InputSpec((INPUTS,)), case.labels, loss=targets_of(case.loss, case.labels, case.compared)
    )
    torch.manual_seed(0)
    bundle = export(build(case.network, settings), spec, folder / "bundle")
    narrow = replace(spec, name="width-0.5", sets={"all": {}}, objectives=("train",))
    write_part(bundle, export(build(case.network, {**settings, "width": 0.5}), narrow, folder / "part"))
    return Bundle.open(bundle.path)


class Lines(NullObserver):
    """Keeps every round's line, and counts updates by kind."""

    def __init__(self) -> None:
        self.lines: list[SimulatedRound] = []
        self.kinds: Counter[str] = Counter()

    def trained(self, job: Any, update: Any) -> None:
        self.kinds[job.strategy.name] += 1

    def closed(self, line: SimulatedRound) -> None:
        self.lines.append(line)


def run(case: Case, bundle: Bundle, folder: Path, division: str, policy: str, seed: int) -> dict[str, Any]:
    """The curve of one run over each of `TERMS`, x 100, and its updates of each kind."""
    kind, head = POLICIES[policy]
    groups = dict(zip(("mild", "slow", "link"), ([region] for region in case.alone), strict=True))
    alone = {group: {"speakers": regions} for group, regions in groups.items()}
    data = {"source": "npz", "path": str(folder), "partition": "dirichlet", "alpha": 0.3}
    table = {
        "devices": 40,
        "slow": SLOW,
        "fleet": FLEET,
        "data": data | {"groups": alone if division == DIVISIONS[0] else {}},
        "task": {"bundle": str(bundle.path), "rounds": ROUNDS, "head": head, "round_deadline_s": DEADLINE_S},
    }
    observer = Lines()
    scenario = scenarios.of_policy(scenarios.load("uniform", table), kind)
    served_model = simulate(prepare(scenario, seed), observer=observer)
    curves = {term: accuracy(observer.lines, axis) for term, axis in TERMS.items()}
    result: dict[str, Any] = {"kinds": dict(observer.kinds)}
    result |= {term: [curve.at.tolist(), (100 * curve.value).tolist()] for term, curve in curves.items()}
    if case.compared == "input":
        result["AUROC"] = 100 * auroc(bundle, served_model, np.load(folder / "x_test.npy"))
    return result


def auroc(bundle: Bundle, served_model: Mapping[str, NDArray[Any]], x: NDArray[np.float32]) -> float:
    """How well the errors of readings x tell them from readings with two channels swapped."""
    model = open_model(bundle)
    model.load(served_model)
    odd = x[:, [1, 0, *range(2, INPUTS)]]
    return evaluate(model, np.concatenate([x, odd]), np.repeat([0, 1], len(x))).metrics["AUROC"]


def figures(case: Case, runs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The figure of each policy, by term; runs by policy, of one seed.

    Equal time and energy are those of the policy that is done first; no stragglers are hypothetical.
    """
    if case.compared == "input":
        return {"rounds": {policy: each["AUROC"] for policy, each in runs.items()}}
    compared_runs = [each for policy, each in runs.items() if policy != "no stragglers"]
    ends = {term: min(each[term][0][-1] for each in compared_runs) for term in TERMS}
    return {term: {policy: _when(each[term], ends[term]) for policy, each in runs.items()} for term in TERMS}


def _when(curve: Sequence[Sequence[float]], end: float) -> float:
    at, value = (np.array(each) for each in curve)
    return Curve(at, value).when(end, LAST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=tuple(CASES), help="one of the tasks")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    runs_by_key = json.loads(options.out.read_text()) if options.out.exists() else {}
    names = [options.only] if options.only else list(CASES)
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            bundle = bundle_of(CASES[name], Path(place))
            for seed, division, policy in product(range(options.seeds), DIVISIONS, POLICIES):
                folder, key = Path(place) / str(seed), f"{name}/{division}/{seed}/{policy}"
                if key in runs_by_key:
                    continue
                if not folder.exists():
                    folder.mkdir()
                    for array, values in samples(name, seed).items():
                        np.save(folder / f"{array}.npy", values)
                runs_by_key[key] = run(CASES[name], bundle, folder, division, policy, seed)
                options.out.write_text(json.dumps(runs_by_key))
                print(key, f"{runs_by_key[key]['rounds'][1][-1]:.1f}", runs_by_key[key]["kinds"], flush=True)
    rows = []
    for name, division in product(names, DIVISIONS):
        by_seed = [
            figures(
                CASES[name],
                {policy: runs_by_key[f"{name}/{division}/{seed}/{policy}"] for policy in POLICIES},
            )
            for seed in range(options.seeds)
        ]
        for term in by_seed[0]:
            policies = [policy for policy in POLICIES if term == "rounds" or policy != "no stragglers"]
            columns = [
                [each[term][policy] for each in by_seed] if policy in policies else [] for policy in POLICIES
            ]
            rows.append((name, division, f"equal {term}", *(spread(column) for column in columns)))
    print(tabulate(rows, ("", "divided by", "at", *POLICIES)))


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds; "" for none."""
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{deviation}" if values else ""


if __name__ == "__main__":
    main()
