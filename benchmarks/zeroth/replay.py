"""How long a log takes to be replayed, which a device that comes back or joins has to do.

    .venv/bin/python benchmarks/zeroth_order.py replay
    .venv/bin/python benchmarks/zeroth_order.py replay --values 21600000 --steps 50 --threads 2

Seconds of replaying `--steps` steps of two directions each on a model of `--values` values, and nanoseconds
for each value, step and direction; `cpu` is processor time, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import numpy as np
from tabulate import tabulate

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies.directions import directions, replaying
from device_runtime.strategies.directions.replaying import ScaledDirection

DIRECTIONS = 2


def replayed(vector: Vector, steps: int, generator: str, threads: int) -> tuple[float, float]:
    """Wall and processor seconds; `vector` moves."""
    scales = np.random.default_rng(1).normal(scale=1e-4, size=(steps, DIRECTIONS))
    moves = [
        tuple(ScaledDirection(step, p, float(scale), generator) for p, scale in enumerate(row))
        for step, row in enumerate(scales)
    ]
    began, cpu_began = time.perf_counter(), time.process_time()
    replaying.apply_moves(vector, moves, threads)
    return time.perf_counter() - began, time.process_time() - cpu_began


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--values", type=int, default=175_066, help="of the model (WRN-16-1: 175066)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])


def run(args: argparse.Namespace) -> None:
    table = []
    for generator in directions.GENERATORS:
        digests = set()
        for threads in args.threads:
            vector = np.random.default_rng(0).standard_normal(args.values, np.float32)
            wall, cpu = replayed(vector, args.steps, generator, threads)
            digests.add(hashlib.sha256(vector).hexdigest())
            each = 1e9 * cpu / (args.values * args.steps * DIRECTIONS)
            table.append((generator, threads, wall, cpu, each))
        assert len(digests) == 1, f"{generator}: the threads made a difference"
    print(tabulate(table, ("generator", "threads", "seconds", "cpu", "ns each"), floatfmt=".2f"))
