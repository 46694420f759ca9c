"""Clients per second: the batched executor against one at a time, on one core, and on CUDA if there is one.

Called by benchmarks/simulation.py. Both executors get the same jobs of one round in the same process, in
turns; the first turn does not count, so that heads train on features that are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tabulate import tabulate

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.executors.job import Executor, ExecutorInputs, TrainingJob
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

CLIENTS = (10, 50, 100)
SAMPLES = 60
TURNS = 5


@dataclass(frozen=True)
class Row:
    """What `clients` devices train: a kind of update with settings, of a bundle."""

    name: str
    bundle: Path | str
    strategy: AnyStrategy
    clients: int
    device: str


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    full = {"epochs": 1, "batch": 10, "momentum": 0.0, "weight_decay": 0.0}
    from growth import exported

    logistic = folder / "B-1000" / "bundle"
    works: list[tuple[str, Path | str, AnyStrategy]] = [
        ("head of digits-wrn", "digits-wrn-10-1", registry.make("few-shot")),
        ("class means of digits-wrn", "digits-wrn-10-1", registry.make("class-means")),
        ("mlp 64-256-256-10, all", exported(folder, 256), registry.make("full", {**full, "lr": 0.1})),
        ("wrn-10-1, all", "digits-wrn-10-1", registry.make("full", {**full, "lr": 0.1})),
    ]
    if logistic.exists():
        works.insert(0, ("logistic 784-10, all", logistic, registry.make("full", {**full, "lr": 0.03})))
    for name, bundle, strategy in works:
        for device in devices():
            for clients in CLIENTS[: 2 if quick else None]:
                yield Row(name, bundle, strategy, clients, device)


def devices() -> list[str]:
    """cpu, and cuda where torch finds one."""
    try:
        import torch
    except ImportError:
        return ["cpu"]
    torch.set_num_threads(1)
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def inputs_of(row: Row) -> ExecutorInputs:
    """Random samples for each client, as many for all."""
    bundle = Bundle.open(bundles.find_bundle(str(row.bundle)))
    rng, count = np.random.default_rng(0), row.clients * SAMPLES
    x = rng.integers(0, 17, (count, *bundle.manifest.input.shape), np.uint8)
    y = rng.integers(0, len(bundle.manifest.labels), count)
    clients = Clients.of(x, y, list(np.arange(count).reshape(row.clients, SAMPLES)))
    settings = EngineSettings(engine="torch", device="cuda") if row.device == "cuda" else EngineSettings()
    return ExecutorInputs(bundle, clients, settings)


def measure(row: Row) -> dict[str, Any]:
    """Medians of both executors, in clients per second."""
    from device_runtime.simulation.executors.choice import ExecutorRequest, make

    inputs = inputs_of(row)
    executors: dict[str, Executor] = {
        name: make(inputs, ExecutorRequest(settings), [row.strategy])
        for name, settings in (("one at a time", "plain"), ("batched", "batched"))
    }
    bases = {"0": inputs.bundle.weights()}
    jobs = [TrainingJob(i, f"user-{i:05d}", row.strategy, 1, "0") for i in range(row.clients)]
    seconds: dict[str, list[float]] = {name: [] for name in executors}
    for turn in range(-1, TURNS):
        for name, executor in executors.items():
            duration_s = timed(lambda executor=executor: [None for _ in executor.run(bases, jobs)])  # type: ignore[misc]
            if turn >= 0:
                seconds[name].append(duration_s)
    for executor in executors.values():
        executor.close()
    rates = {name: row.clients / median(times) for name, times in seconds.items()}
    return {
        "work": row.name,
        "on": row.device,
        "clients": row.clients,
        **{f"{name}, /s": rate for name, rate in rates.items()},
        "ratio": rates["batched"] / rates["one at a time"],
    }


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def batched(options: argparse.Namespace, folder: Path) -> int:
    """Prints the table."""
    table = []
    for row in rows(folder, options.quick):
        print(f"{row.name}, {row.clients} on {row.device}", file=sys.stderr, flush=True)
        table.append(measure(row))
    print(tabulate(table, headers="keys", floatfmt=("", "", "", ".0f", ".0f", ".2f")))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return 0
