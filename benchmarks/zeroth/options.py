"""What might make zeroth-order rounds learn faster, each alone, at equal forward passes: on heads, in numpy.

    .venv/bin/python benchmarks/zeroth_order.py options --out DIR                    # Speech Commands
    .venv/bin/python benchmarks/zeroth_order.py options --out DIR --data cifar10 --alpha 0.1

The loss of a head on features of SqueezeNet 1.0, from the class means on; written out by itself, so that also
what was not built can be tried. Each option is given several step sizes and shown at its best by the mean of
the accuracies on the way: at a quarter, a half, three quarters and all of the passes. Mean over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models.training.heads import cross_entropy
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.data import DataSpec

from .pretrained import subject

EPS = 1e-3
RATES = (0.01, 0.02, 0.04, 0.08)
Array = NDArray[Any]


@dataclass(frozen=True)
class Option:
    """`losses` of a device and round. `own`: directions for each device; `size`: of steps, "rms" by the usual
    scalar so far, "round" by the round's, "fixed" by the first round's. The rest says itself.
    """

    losses: int = 4
    sides: int = 2
    own: bool = False
    shape: str = "normal"  # or signs, low-rank
    size: str = "rms"
    momentum: float = 0.0
    average: float = 0.0  # of the weights that are evaluated, exponential
    decay: bool = False  # of the step, linear to 0
    columns: bool = False  # directions in proportion to 1 / deviation of the feature


ONE = Option(sides=1)
OPTIONS: Mapping[str, Option] = {
    "two-sided, fixed step (FedMeZO)": Option(size="fixed"),
    "two-sided": Option(),
    "one-sided": ONE,
    "one-sided, signs": replace(ONE, shape="signs"),
    "one-sided, signs, 9 losses": replace(ONE, shape="signs", losses=9),
    "one-sided, low rank": replace(ONE, shape="low-rank"),
    "one-sided, step by the round's spread": replace(ONE, size="round"),
    "one-sided, momentum 0.9": replace(ONE, momentum=0.9),
    "one-sided, averaged weights": replace(ONE, average=0.98),
    "one-sided, falling step": replace(ONE, decay=True),
    "one-sided, scaled columns": replace(ONE, columns=True),
    "one-sided, own directions": replace(ONE, own=True),
}


@dataclass(frozen=True)
class Data:
    """Features with a column of ones, float32 (n, width + 1), and labels; `parts` by device."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    parts: Sequence[Array]

    def losses(self, rows: Array, heads: Array) -> Array:
        """Of some samples, by each of the heads (p, classes, width + 1)."""
        logits = self.x[rows] @ heads.reshape(-1, heads.shape[-1]).T
        logits = logits.reshape(len(rows) * len(heads), -1)
        each = cross_entropy(logits, self.y[rows].repeat(len(heads)))
        return np.asarray(each.reshape(len(rows), -1).mean(0, dtype=np.float64))

    def accuracy(self, head: Array) -> float:
        return float(((self.test_x @ head.T).argmax(1) == self.test_y).mean())

    def class_means(self) -> Array:
        rows = np.stack([self.x[self.y == c].mean(0) for c in range(int(self.y.max()) + 1)])
        rows[:, -1] = 0
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def load(args: argparse.Namespace, seed: int) -> Data:
    of = subject(args.data, "head", args.out / "made")
    division = {"partition": "dirichlet", "alpha": args.alpha} if args.alpha else {"partition": "iid"}
    spec = DataSpec(**of.data, **division, max_train=args.samples)
    data = data_sets.load(spec, seed)
    scale = np.sqrt(np.square(data.train_x, dtype=np.float64).mean())
    train, test = (
        np.pad(x / scale, ((0, 0), (0, 1)), constant_values=1) for x in (data.train_x, data.test_x)
    )
    parts = data_sets.divide(data, spec, args.clients, seed)
    return Data(train.astype(np.float32), data.train_y, test.astype(np.float32), data.test_y, parts)


def drawn(option: Option, rng: np.random.Generator, shape: tuple[int, ...], columns: Array) -> Array:
    if option.shape == "signs":
        return rng.choice(np.float32([-1, 1]), shape)
    if option.shape == "low-rank":
        left, right = (*shape[:2], 1), (shape[0], 1, shape[2])
        return rng.standard_normal(left, np.float32) * rng.standard_normal(right, np.float32)
    direction = rng.standard_normal(shape, np.float32)
    return direction * columns if option.columns else direction


def learn(data: Data, option: Option, rate: float, passes: int, seed: int) -> list[float]:
    """The accuracy at each quarter of the passes."""
    rng, head = np.random.default_rng(seed), data.class_means()
    unit, average, velocity = float(np.sqrt(np.square(head).mean())), head, np.zeros_like(head)
    number = option.losses // 2 if option.sides == 2 else option.losses - 1
    columns = 1 / (data.x.std(0) + 0.1)
    columns /= np.sqrt(np.square(columns).mean())
    rounds, weight, total, usual, accuracies = passes // option.losses, 0.0, 0.0, 0.0, []
    for at in range(1, rounds + 1):
        z = drawn(option, rng, (number, *head.shape), columns)
        step, squares = np.zeros_like(head), 0.0
        scalars = np.zeros(number)
        for part in data.parts:
            if option.own:
                z = drawn(option, rng, (number, *head.shape), columns)
            share = len(part) / len(data.y)
            ahead = data.losses(part, head + np.float32(EPS * unit) * z)
            back = head - np.float32(EPS * unit) * z if option.sides == 2 else head[None]
            g = (ahead - data.losses(part, back)) / (option.sides * EPS)
            scalars += share * g
            squares += share**2 * float(np.square(g).mean())
            step += np.tensordot(share * g / number, z, 1).astype(np.float32)
        square = squares if option.own else float(np.square(scalars).mean())
        total, weight = 0.99 * total + 0.01 * square, 0.99 * weight + 0.01
        if option.size == "rms" or not usual:
            usual = float(np.sqrt(total / weight))
        elif option.size == "round":
            usual = float(np.sqrt(square))
        velocity = option.momentum * velocity + (1 - option.momentum) * step
        fall = 1 - at / rounds if option.decay else 1.0
        head = head - np.float32(rate * unit * fall * np.sqrt(number) / usual) * velocity
        average = average + (head - average) * np.float32(max(1 - option.average, 1 / at))
        if at % max(1, rounds // 4) == 0:
            accuracies.append(data.accuracy(average if option.average else head))
    return accuracies[:4]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of what is made for it")
    add("--data", choices=("cifar10", "speech"), default="speech")
    add("--alpha", type=float, default=0.0, help="of a Dirichlet partition (default: equal shares)")
    add("--clients", type=int, default=10)
    add("--samples", type=int, default=1500, help="of the training samples (default: 1500)")
    add("--passes", type=int, default=800, help="of each device through its data (default: 800)")
    add("--seeds", type=int, default=2, help="runs of each (default: 2)")
    add("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS), help="these (default: all)")


def run(args: argparse.Namespace) -> None:
    sets = [load(args, seed) for seed in range(args.seeds)]
    rows = []
    for name in args.only:
        tried = {
            rate: np.mean(
                [learn(samples, OPTIONS[name], rate, args.passes, seed) for seed, samples in enumerate(sets)],
                0,
            )
            for rate in RATES
        }
        best = max(tried, key=lambda rate: float(tried[rate].mean()))
        rows.append([name, f"{best:g}", *(f"{100 * value:.1f}" for value in tried[best])])
        print(*rows[-1], flush=True)
    start = np.mean([samples.accuracy(samples.class_means()) for samples in sets])
    head = ["option", "rate", *(f"{round(args.passes * part / 4)} passes" for part in range(1, 5))]
    print(f"class means: {100 * start:.1f} %", tabulate(rows, head, tablefmt="github"), sep="\n")
