"""Directions that are longer along some weights than along others: does it learn faster, at equal passes?

    .venv/bin/python benchmarks/zeroth_order.py scales --out DIR --data cifar10 --seeds 1
    .venv/bin/python benchmarks/zeroth_order.py scales --out DIR --only none "features, by class means"

A scale of each weight, of a root mean square of 1, multiplies every direction. Rebuilt from the log (HiSo, Li
et al. 2025): 1 / root of the running mean of squared steps, which every device knows; of each weight, or of
the mean over a class or a feature. A mask (Meerkat, Ran et al. 2025): the share of the weights with the
largest mean square gradient at the start, over all samples, which is more than a fleet would know; "of means"
by what class means say of it. Beside them the curvature itself, as it is at the start, and what was built:
features that have a scale by class means (`strategies.statistics.class_sums`), which weights see as well.

On heads as `options` has them, from class means on: one side, four directions of signs, a tenth of the
samples in a round. Each is given several step sizes and shown at its best by the mean of the accuracies at a
quarter, a half, three quarters and all of the passes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tabulate import tabulate

from device_runtime.models.training.heads import log_softmax
from device_runtime.strategies.statistics.class_sums import scale_by

from . import options
from .options import EPS, Array, Data, load

DIRECTIONS, SAMPLED, RATES = 4, 0.1, (0.005, 0.01, 0.02, 0.04)
FLOOR = 0.1
"""Of the mean curvature, added to each: the longest scale is some three times the usual."""
HISO = 0.01
"""How much of its running mean is the last step's square."""

Scale = Callable[[Array | None], Array]
"""From the last step (none at first) to the scale of the next directions; both are of a head's shape."""


def normed(scale: Array) -> Array:
    return np.asarray(scale / np.sqrt(np.square(scale, dtype=np.float64).mean()), np.float32)


def fixed(scale: Array) -> Scale:
    scale_ = normed(scale)
    return lambda _: scale_


def of_curvature(curvature: Array) -> Array:
    return np.asarray(1 / np.sqrt(curvature + FLOOR * curvature.mean()))


def from_log(data: Data, axis: int | None = None) -> Scale:
    """`axis`: that squares are averaged over: 0 for one scale a feature, 1 for one a class."""
    shape = data.class_means().shape
    total = np.zeros(shape)

    def after(step: Array | None) -> Array:
        nonlocal total
        if step is None:
            return np.ones(shape, np.float32)
        square = np.square(step, dtype=np.float64)
        if axis is not None:
            square = np.broadcast_to(square.mean(axis, keepdims=True), shape)
        total = (1 - HISO) * total + HISO * square if total.any() else np.full(shape, square.mean())
        return normed(of_curvature(total))

    return after


def gradients(data: Data) -> Array:
    """The mean square gradient of each weight of the head of class means, (classes, width + 1)."""
    slope = np.exp(log_softmax(data.x @ data.class_means().T))
    slope[np.arange(len(data.y)), data.y] -= 1
    return np.asarray(np.square(slope).T @ np.square(data.x) / len(data.y))


def curvature(data: Data) -> Array:
    """The diagonal of the Hessian there."""
    p = np.exp(log_softmax(data.x @ data.class_means().T))
    return np.asarray((p * (1 - p)).T @ np.square(data.x) / len(data.y))


def of_means(data: Data) -> Array:
    """The mean square over class means of each feature, alike for every class."""
    rows = means(data)
    return np.broadcast_to(np.square(rows).mean(0), rows.shape)


def means(data: Data) -> Array:
    return np.stack([data.x[data.y == c].mean(0) for c in range(int(data.y.max()) + 1)])


def mask(data: Data, of: Callable[[Data], Array], share: float) -> Scale:
    importance = of(data)
    return fixed((importance >= np.quantile(importance, 1 - share)).astype(np.float32))


SCALES: Mapping[str, Callable[[Data], Scale]] = {
    "none": lambda data: fixed(np.ones_like(data.class_means())),
    "from the log, of each weight": from_log,
    "from the log, of features": partial(from_log, axis=0),
    "from the log, of classes": partial(from_log, axis=1),
    **{f"mask of {share:g}": partial(mask, of=gradients, share=share) for share in (0.5, 0.25, 0.1, 0.03)},
    **{f"mask of {share:g}, of means": partial(mask, of=of_means, share=share) for share in (0.5, 0.25)},
    "the curvature itself": lambda data: fixed(of_curvature(curvature(data))),
    "by class means": lambda data: fixed(of_curvature(of_means(data))),
}
FEATURES = "features, by class means"


def scaled(data: Data) -> Data:
    """With features as a bundle with a scale has them after the round of class means."""
    scale = np.append(scale_by(means(data)[:, :-1]), np.float32(1))
    return replace(data, x=data.x * scale, test_x=data.test_x * scale)


def learn(data: Data, scale: Scale, rate: float, passes: int, seed: int) -> list[float]:
    """The accuracy of class means, and at each quarter of the passes."""
    rng, head = np.random.default_rng(seed), data.class_means().astype(np.float32)
    unit, total, weight = float(np.sqrt(np.square(head).mean())), 0.0, 0.0
    count = round(SAMPLED * len(data.y))
    rounds = round(passes * len(data.y) / (count * (DIRECTIONS + 1)))
    step, accuracies = None, [data.accuracy(head)]
    for at in range(1, rounds + 1):
        z = rng.choice(np.float32([-1, 1]), (DIRECTIONS, *head.shape)) * scale(step)
        rows = rng.permutation(len(data.y))[:count]
        losses = data.losses(rows, np.concatenate([head[None], head + np.float32(EPS * unit) * z]))
        g = (losses[1:] - losses[0]) / EPS
        total, weight = 0.99 * total + 0.01 * np.square(g).mean(), 0.99 * weight + 0.01
        g *= rate * unit / np.sqrt(DIRECTIONS * total / weight)
        step = np.tensordot(g, z, 1).astype(np.float32)
        head = head - step
        if at in [rounds * part // 4 for part in range(1, 5)]:
            accuracies.append(data.accuracy(head))
    return accuracies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    names = (*SCALES, FEATURES)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))


def run(args: argparse.Namespace) -> None:
    sets = [load(args, seed) for seed in range(args.seeds)]
    rows: list[list[Any]] = []
    for name in args.only:
        samples = [scaled(part) if name == FEATURES else part for part in sets]
        of = SCALES.get(name, SCALES["none"])
        tried = {
            rate: np.array(
                [learn(part, of(part), rate, args.passes, seed) for seed, part in enumerate(samples)]
            )
            for rate in args.rates
        }
        best = max(tried, key=lambda rate: float(tried[rate].mean()))
        spread = f" ± {100 * tried[best][:, -1].std(ddof=1):.1f}" if args.seeds > 1 else ""
        rows.append([name, f"{best:g}", *(f"{100 * value:.1f}" for value in tried[best].mean(0))])
        rows[-1][-1] += spread
        print(*rows[-1], flush=True)
    quarters = (f"{round(args.passes * part / 4)} passes" for part in range(1, 5))
    head = ["scale", "rate", "class means", *quarters]
    print(tabulate(rows, head, tablefmt="github", disable_numparse=True))
