"""What should a device prefer that cannot train: a few-shot head, class means, or scalars? Orders compared.

    .venv/bin/python -m benchmarks.order_of_kinds --out DIR                  # digits, 2 seeds: some 3 minutes
    .venv/bin/python -m benchmarks.order_of_kinds --out DIR --data cifar10   # or speech; needs torch

A fleet of fast devices, devices that are too slow to train, and devices behind a narrow link, with the head
in closed form. On digits and CIFAR-10 two classes are with the slow alone, one with those behind the link.
Printed are the mean accuracy of the last five evaluations, modelled energy, and the mean recall of those
classes. It is `device-runtime simulate` of a scenario that lies in DIR; what is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
from tabulate import tabulate

from benchmarks.papers import exporting
from benchmarks.papers.places import data_folder, shared
from benchmarks.papers.sampling import spec_of

ORDERS = {
    "few-shot, scalars, class means": ("few-shot", "zeroth-order", "class-means"),
    "few-shot, class means, scalars": ("few-shot", "class-means", "zeroth-order"),
    "class means, few-shot, scalars": ("class-means", "few-shot", "zeroth-order"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"epochs": 5},
    "entropy-subset": {"epochs": 5},
    "few-shot": {"join_base": True},
    "class-means": {"head": "trained"},
}
TRAINING = ("full", "entropy-subset")
DIRICHLET = {"partition": "dirichlet", "alpha": 0.3}
BY_SPEAKER = {"partition": "natural", "groups_per_client": 1, "min_samples": 8}
ALONE = {"slow": {"classes": [7, 8]}, "link": {"classes": [9]}}
DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "fleet": (0.35, 2200),
        "task": {"rounds": 12, "round_deadline_s": 1.6},
        "data": {**DIRICHLET, "groups": ALONE},
        "scenario": {"devices": 40, "slow": 20.0},
        "training": {},
    },
    "cifar10": {
        "fleet": (0.45, 600),
        "task": {"rounds": 20, "round_deadline_s": 3.5, "devices_per_round": 10},
        "data": {**DIRICHLET, "groups": ALONE},
        "scenario": {"devices": 50, "slow": 10.0},
        "training": {"lr": 0.05, "batch": 32},
    },
    "speech": {
        "fleet": (0.35, 3900),
        "task": {"rounds": 20, "round_deadline_s": 0.6, "devices_per_round": 20},
        "data": BY_SPEAKER,
        "scenario": {"devices": 150, "slow": 10.0},
        "training": {"lr": 0.03, "batch": 8},
    },
}


def fleet(slow: float, up: int) -> dict[str, Any]:
    """Slow devices have this part of a Pi Zero's speed; a link carries so many bytes a second up."""
    return {
        "name": "fast-slow-link",
        "groups": {
            "fast": {"profile": "pi-5", "share": 0.4},
            "slow": {"profile": "pi-zero-2w", "share": 0.45, "speed": {"factor": slow}},
            "link": {"profile": "pi-4", "share": 0.15, "link": {"up_bytes_per_s": up}},
        },
    }


def scenario(name: str, order: tuple[str, ...]) -> dict[str, Any]:
    """As a TOML file would have it."""
    source, tables = DATA[name], shared()
    folder = data_folder(None, os.environ)
    entry = tables.entry(name, "cpu")
    samples = exporting.BundleSamples(entry, folder.form(entry, "cpu"))
    network = "digits-wrn-10-1" if name == "digits" else "cnn-quarter"
    kinds = [
        {
            "name": kind,
            "settings": {**SETTINGS.get(kind, {}), **(source["training"] if kind in TRAINING else {})},
        }
        for kind in (*TRAINING, *order)
    ]
    return {
        **source["scenario"],
        "eval_every": 2,
        "fleet": fleet(*source["fleet"]),
        "data": msgspec.to_builtins(spec_of(samples, source["data"], folder)),
        "task": {
            **source["task"],
            "bundle": exporting.bundle(network, tables, samples, folder),
            "head": "closed-form",
            "kinds": kinds,
        },
    }


def toml(value: Any) -> str:
    """In one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(inner) for inner in value)}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    return (
        f"{{ {', '.join(f'{name} = {toml(inner)}' for name, inner in value.items() if inner is not None)} }}"
    )


def run(file: Path, out: Path, seeds: int) -> None:
    options = ["--compare", "kinds=choose", "--seeds", str(seeds), "--parallel", "1", "--workers", "1"]
    command = [sys.executable, "-m", "device_runtime", "simulate", str(file), *options, "--run-dir", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def row(label: str, out: Path, alone: bool) -> tuple[str, ...]:
    """Of an order: its means over the seeds."""
    runs = sorted((out / "runs").iterdir())
    last = [
        [line for line in lines(run / "rounds.jsonl") if line["eval_acc"] is not None][-5:] for run in runs
    ]
    accuracies = [mean(line["eval_acc"] for line in some) for some in last]
    energy = mean(sum(line["energy_j"] for line in lines(run / "asks.jsonl")) for run in runs)
    weak = mean(mean(line["eval_acc_by_class"][7:10]) for some in last for line in some)
    by_seed = ", ".join(f"{accuracy:.1%}" for accuracy in accuracies)
    return label, f"{mean(accuracies):.1%} ({by_seed})", f"{weak:.1%}" if alone else "-", f"{energy:,.0f} J"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for label, order in ORDERS.items():
        folder = options.out / options.data / "-".join(order)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "scenario.toml"
        parts = scenario(options.data, order).items()
        file.write_text("\n".join(f"{name} = {toml(value)}" for name, value in parts))
        run(file, folder / "run", options.seeds)
        rows.append(row(label, folder / "run", "groups" in DATA[options.data]["data"]))
    headers = (
        "preferred after training",
        "accuracy (by seed)",
        "classes of the weak alone",
        "energy (modelled)",
    )
    print(tabulate(rows, headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
