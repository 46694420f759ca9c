"""How time and memory of our simulator grow with the devices of a fleet, and with the size of a model.

Called by benchmarks/simulation.py. Every row is a new process: the fleet of a preset on scikit-learn's
digits, 20 samples on each device. In the growing fleets class means are asked for, which cost next to nothing
to make: what grows is the simulator's own. Of the growing models full updates of one epoch are asked for.
Seconds of a round are the median without the first; memory is the peak of the resident set. The batched
executor in one process, one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

FLEET = "boards"
DEVICES = (100, 1_000, 10_000, 100_000)
ALL_UP_TO = 10_000
ROUNDS = 6
WIDTHS = (32, 256, 896, 3072)  # of two hidden layers
EXPORTS = "digits-mlp"


@dataclass(frozen=True)
class Row:
    """`asked` devices of a fleet in each round; `bundle` is a folder, or the name of a shipped one."""

    series: str
    devices: int
    per_round: int
    bundle: str
    kind: str


def rows(folder: Path, quick: bool) -> list[Row]:
    shipped = "digits-wrn-10-1"
    cohorts = [Row("50 a round", n, 50, shipped, "class-means") for n in DEVICES]
    everyone = [
        Row("all of them", n, n, shipped, "class-means")
        for n in DEVICES
        if n <= (1_000 if quick else ALL_UP_TO)
    ]
    models = [Row("model", 100, 20, str(exported(folder, w)), "full") for w in WIDTHS[: 2 if quick else None]]
    return [*cohorts, *everyone, *models]


def exported(folder: Path, width: int) -> Path:
    """The bundle of an MLP on digits, made unless it is there."""
    home = folder / f"{EXPORTS}-{width}"
    if not (home / "manifest.json").exists():
        import torch

        from device_runtime.models.bundles.inputs import InputSpec
        from device_runtime.models.bundles.manifest import Source
        from device_runtime.models.export.export import ExportSpec, export
        from device_runtime.models.networks import build

        torch.manual_seed(0)
        source = Source("mlp", {"inputs": 64, "hidden": width})
        labels = tuple("0123456789")
        spec = InputSpec((1, 8, 8), scale=1 / 16)
        export(
            build(source.network, source.settings), ExportSpec(home.name, spec, labels, source=source), home
        )
    return home


def growth(options: argparse.Namespace, folder: Path) -> int:
    """Prints the table; draws it where a plot is asked for."""
    table = []
    for row in rows(folder, options.quick):
        print(row, file=sys.stderr, flush=True)
        output = subprocess.check_output([sys.executable, __file__, json.dumps(asdict(row))], text=True)
        table.append(json.loads(output.splitlines()[-1]))
    formats = ("", "", "", ",", ".2f", ".4f", ".0f")
    print(tabulate(table, headers="keys", floatfmt=formats))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    if options.plot:
        plot(table, options.plot)
    return 0


def measure(row: Row) -> dict[str, Any]:
    """One run in this process, which should be new."""
    from device_runtime.simulation.executors.choice import ExecutorRequest, make
    from device_runtime.simulation.history.records import NullObserver
    from device_runtime.simulation.rounds.run import prepare, simulate
    from device_runtime.simulation.scenarios.scenario import load

    marks: list[float] = []

    class Marks(NullObserver):
        def closed(self, line: Any) -> None:
            marks.append(time.perf_counter())

    task = {
        "bundle": row.bundle,
        "rounds": ROUNDS,
        "devices_per_round": row.per_round,
        "round_deadline_s": 600.0,
        "kinds": [{"name": row.kind, "settings": {"epochs": 1} if row.kind == "full" else {}}],
    }
    over = {
        "devices": row.devices,
        "eval_every": 0,
        "task": task,
        "data": {"samples_per_client": 20, "reuse": True},
    }
    began = time.perf_counter()
    prepared = prepare(load(FLEET, over), seed=0)
    simulate(prepared, lambda inputs: make(inputs, ExecutorRequest("batched"), ()), Marks())
    seconds = [after - before for before, after in pairwise(marks)]
    status = Path("/proc/self/status").read_text()
    return {
        "series": row.series,
        "devices": row.devices,
        "asked": row.per_round,
        "parameters": prepared.inputs.bundle.manifest.num_parameters("all"),
        "first round s": marks[0] - began,
        "round s": median(seconds),
        "peak MB": 1024 * int(status.partition("VmHWM:")[2].split()[0]) / 1e6,
    }


def plot(table: list[dict[str, Any]], path: Path) -> None:
    """Seconds of a round above, memory below; by devices on the left, by parameters on the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex="col", sharey="row", layout="constrained")
    for column, (x, names) in enumerate(
        (("devices", ("50 a round", "all of them")), ("parameters", ("model",)))
    ):
        for name in names:
            part = [row for row in table if row["series"] == name]
            for axis, y in zip(axes[:, column], ("round s", "peak MB"), strict=True):
                label = name if name != "model" else "20 of 100 devices"
                axis.plot([row[x] for row in part], [row[y] for row in part], "o-", label=label)
        axes[1, column].set_xlabel(x)
    for axis in axes.flat:
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    for axis in axes[0]:
        axis.legend()
    axes[0, 0].set_ylabel("seconds of a round")
    axes[1, 0].set_ylabel("peak memory, MB")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    print(json.dumps(measure(Row(**json.loads(sys.argv[1])))))
