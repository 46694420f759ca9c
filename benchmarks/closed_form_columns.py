"""Compares heads for values, flags and reconstruction, where stragglers alone hold a region of the data.

    .venv/bin/python benchmarks/closed_form_columns.py [--seeds 3] [--rounds 15] [--only regression]

Data is made from a seed: a regression of two values from twelve (R2 x 100), four flags from twelve values
(label accuracy in %), and readings of a machine in ten modes, of which anomalies are readings with two
channels swapped (AUROC x 100). Three tenths of the target, two flags, or three modes are with slow boards
alone, which cannot do a full update before the deadline; the rest is as in the preset `straggler-classes`. No
kinds are named. Mean of the last five rounds; of the AUROC, that of the last round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.training.evaluation import evaluate
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario as scenarios

INPUTS, TRAIN, TEST, MODES, LAST = 12, 4000, 1000, 10, 5
POLICIES = (("no stragglers", "no-stragglers", "auto"), ("dropped", "drop", "auto"),
            ("mixed, trained head", "choose", "trained"), ("mixed", "choose", "auto"))  # fmt: skip


FLEET = {"name": "boards", "groups": {
    "fast": {"profile": "pi-5", "share": 0.7, "speed": {"sigma": 0.1, "jitter": 0.05}},
    "weak": {"profile": "pi-zero-2w", "share": 0.3, "speed": {"sigma": 0.1, "jitter": 0.05}},
}}  # fmt: skip
"""As in the preset `straggler-classes`."""


@dataclass(frozen=True)
class Case:
    """A task: its network and loss, and which tenths, flags or modes stragglers alone hold."""

    network: str
    settings: dict[str, Any]
    labels: tuple[str, ...]
    loss: str
    compared: str
    alone: tuple[int, ...]


CASES = {
    "regression": Case("mlp", {"hidden": 32, "classes": 2}, ("load", "wear"), "mse", "values", (7, 8, 9)),
    "flags": Case("mlp", {"hidden": 32, "classes": 4}, tuple("abcd"), "bce", "flags", (2, 3)),
    "anomalies": Case(
        "autoencoder", {"hidden": 32, "code": 4}, ("normal", "anomaly"), "mse", "input", (7, 8, 9)
    ),
}


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
    import torch

    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(0)
    module = build(case.network, {"inputs": INPUTS, **case.settings})
    spec = InputSpec((INPUTS,))
    target = targets_of(case.loss, case.labels, case.compared)
    return export(module, ExportSpec("columns", spec, case.labels, loss=target), folder)


class Lines(NullObserver):
    """Keeps every round's line."""

    def __init__(self) -> None:
        self.lines: list[SimulatedRound] = []
        self.kinds: Counter[str] = Counter()

    def trained(self, job: Any, update: Any) -> None:
        self.kinds[job.strategy.name] += 1

    def closed(self, line: SimulatedRound) -> None:
        self.lines.append(line)


def score(
    case: Case, bundle: Bundle, folder: Path, run: tuple[str, str, int, int, float]
) -> tuple[float, str]:
    """The figure of one run, x 100, and how many updates of each kind counted."""
    policy, head, seed, rounds, slow = run
    data = {
        "source": "npz", "path": str(folder), "partition": "dirichlet", "alpha": 0.3,
        "groups": {"weak": {"speakers": list(case.alone)}},
    }  # fmt: skip
    task = {"bundle": str(bundle.path), "rounds": rounds, "head": head}
    table = {
        "devices": 40,
        "slow": slow,
        "fleet": FLEET,
        "data": data,
        "task": {**task, "round_deadline_s": 3.0},
    }
    scenario = scenarios.load("uniform", table)
    lines = Lines()
    served = simulate(prepare(scenarios.of_policy(scenario, policy), seed), observer=lines)
    kinds = ", ".join(f"{count} {kind}" for kind, count in lines.kinds.most_common())
    if case.compared != "input":
        return 100 * float(np.mean([line.eval_acc for line in lines.lines[-LAST:]])), kinds
    model = open_model(bundle)
    model.load(served)
    x = np.load(folder / "x_test.npy")
    odd = x[:, [1, 0, *range(2, INPUTS)]]
    labels = np.repeat([0, 1], len(x))
    return 100 * evaluate(model, np.concatenate([x, odd]), labels).metrics["AUROC"], kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--slow", type=float, default=8000.0, help="every board is so many times slower")
    parser.add_argument("--only", choices=tuple(CASES), help="one of the tasks")
    options = parser.parse_args()
    rows = []
    for name in [options.only] if options.only else CASES:
        case, figures = CASES[name], []
        with tempfile.TemporaryDirectory() as place:
            bundle = bundle_of(case, Path(place) / "bundle")
            for seed in range(options.seeds):
                folder = Path(place) / str(seed)
                folder.mkdir()
                for key, value in samples(name, seed).items():
                    np.save(folder / f"{key}.npy", value)
                figures.append([])
                for label, policy, head in POLICIES:
                    run = (policy, head, seed, options.rounds, options.slow)
                    value, kinds = score(case, bundle, folder, run)
                    figures[-1].append(value)
                    print(f"{name}, seed {seed}, {label}: {value:.1f} ({kinds})", flush=True)
        rows.append((name, *np.mean(figures, axis=0)))
    print(tabulate(rows, ("", *(label for label, *_ in POLICIES)), floatfmt=".1f"))


if __name__ == "__main__":
    main()
