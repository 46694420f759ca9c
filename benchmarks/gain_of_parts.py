"""Compares variants of `width-slice` in tasks of classes: which makes parts of a network worth sending?

    .venv/bin/python benchmarks/gain_of_parts.py --out parts.json --seeds 1      # 15 minutes

The rounds are those of `gain_of_forms.py`: ten of 16 devices send parts of half the width, or nothing.
Printed are the points of accuracy over nothing, as the mean of the last four rounds. What is in the file is
not run again.

In "statistics" parts hardly count in the mean, and send class means of their own features. These are taken to
features of the whole network by a linear map, the regression of the whole's features on the part's. Devices
with the whole base give its sums, as they can compute both. Bounds of statistics are off there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gain_of_forms
import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.weights import Slices
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.width_slice import WidthSlice
from device_runtime.strategies.statistics import class_statistics, class_sums, closed_form, kind_statistics
from device_runtime.strategies.statistics.bounds import StatisticsBounds
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums

FORM = "width-slice width-0.5"
GROUP = 8
"""Channels that group norm normalises together: of these a part has some, or none."""
RIDGE, DECAY = 0.01, 0.3
"""Of the map: the weight of the mean variance, and what a round's sums count in the next."""
WEIGHTS = {"weight 0.3": 0.3, "statistics": 0.01}
VARIANTS = ("as it is", "weight 0.3", "without head", "scaler", "largest channels", "statistics")
VARIANT = ["as it is"]
Index = tuple[NDArray[np.int64], ...]
derive, fold, plan_statistics = WidthSlice.derive, WidthSlice.fold, kind_statistics.statistics_of


def axes(name: str) -> tuple[str, ...]:
    """The name of the channels along each axis of a tensor of WRN-10-1; "" for inputs, labels, and kernels.

    The first group has no convolution in its shortcut, so its channels are those of the first convolution.
    """
    layer, _, which = name.rpartition(".")
    if layer in ("conv1", "norm", "head"):
        return {"conv1": ("1", ""), "norm": ("3",), "head": ("", "3")}[layer][: 1 + (which == "weight")]
    number, inner = int(layer[5]), str(max(1, int(layer[5]) - 1))
    own = {"norm1": (inner,), "norm2": (f"h{number}",), "shortcut": (str(number), inner)}
    own |= {"conv1": (f"h{number}", inner), "conv2": (str(number), f"h{number}")}
    return own[layer.rpartition(".")[2]]


def largest(base: Any, shapes: Any) -> dict[str, Index]:
    """Where a part's tensors are in the base: groups of channels of the largest weights, in order."""
    sizes: dict[str, int] = {}
    magnitudes: dict[str, Any] = {}
    for name, shape in shapes.items():
        for axis, channels in enumerate(axes(name)):
            if channels:
                others = tuple(other for other in range(len(shape)) if other != axis)
                magnitudes[channels] = magnitudes.get(channels, 0) + np.abs(base[name]).sum(others)
                sizes[channels] = shape[axis]
    chosen = {}
    for channels, values in magnitudes.items():
        groups = np.argsort(-values.reshape(-1, GROUP).sum(1), kind="stable")[: sizes[channels] // GROUP]
        chosen[channels] = np.concatenate([np.arange(GROUP) + GROUP * group for group in np.sort(groups)])
    return {
        name: np.ix_(
            *(
                chosen[channels] if channels else np.arange(size)
                for channels, size in zip((*axes(name), "", "", "")[: len(shape)], shape, strict=True)
            )
        )
        for name, shape in shapes.items()
    }


def scale(name: str, shape: tuple[int, ...], wide: tuple[int, ...]) -> np.float32:
    """The share of a layer's inputs that a part has: HeteroFL's Scaler divides by it in training."""
    return np.float32(shape[1] / wide[1] if len(shape) > 1 else 1)


def derived(self: WidthSlice, base: Any, manifests: Any) -> dict[str, Any]:
    members = derive(self, base, manifests)
    for weights in members.values():
        if VARIANT[0] == "largest channels":
            places = largest(base, {name: value.shape for name, value in weights.items()})
            weights.update({name: np.ascontiguousarray(base[name][place]) for name, place in places.items()})
        if VARIANT[0] == "scaler":
            for name, value in weights.items():
                weights[name] = value / scale(name, value.shape, base[name].shape)
    return members


def folded(self: WidthSlice, state: Any, update: Any, weight: float) -> Any:
    tensors, weight = dict(update.tensors), weight * WEIGHTS.get(VARIANT[0], 1.0)
    if VARIANT[0] == "without head":
        tensors = {name: value for name, value in tensors.items() if not name.startswith("head.")}
    if VARIANT[0] == "scaler":
        tensors = {n: v * scale(n, v.shape, state.base[n].shape) for n, v in tensors.items()}
    if VARIANT[0] != "largest channels":
        return fold(self, state, replace(update, tensors=tensors), weight)
    places = largest(state.base, {name: value.shape for name, value in tensors.items()})
    for name, value in tensors.items():
        total, parts = state.mean._partial(name, state.base[name])
        total[places[name]] += weight * value.astype(np.float64)
        parts.weights[places[name]] += weight
    return state


class Maps:
    """Sums for the regression of the whole network's features on a part's, and how statistics pass it."""

    def __init__(self) -> None:
        self.whole = Bundle.open(shipped_folder("digits-wrn-10-1"))
        [self.part] = self.whole.parts().values()
        self.model = open_model(self.part)
        self.slices = Slices.of(self.whole.manifest, self.part.manifest)
        self.width = self.whole.manifest.head.features
        self.sums: Any = 0.0
        self.train, self.can_send = kind_statistics.train, kind_statistics._can_send
        self.decode, self.add = class_statistics.decode, closed_form.RoundStatistics.add
        self.closed, self.bounded = closed_form.RoundStatistics.closed, StatisticsBounds.bounded

    def patch(self, on: bool) -> None:
        """Have parts send statistics, or not."""
        self.sums, here = 0.0, self
        if not on:
            kind_statistics.train, kind_statistics._can_send = self.train, self.can_send
            kind_statistics.statistics_of, class_statistics.decode = plan_statistics, self.decode
            closed_form.RoundStatistics.add = self.add
            closed_form.RoundStatistics.closed = self.closed
            StatisticsBounds.bounded = self.bounded
            return
        waiting: list[Any] = []

        def train(strategy: Any, model: Any, data: Any, run: Any) -> Any:
            if strategy.name == "full":
                self.model.load(self.slices.cut(model.weights))
                both = [model.features(data.x), self.model.features(data.x), np.ones((len(data), 1))]
                joined = np.hstack(both).astype(np.float64)
                self.sums = self.sums + joined.T @ joined
            return here.train(strategy, model, data, run)

        def statistics_of(strategy: Any) -> Any:
            own = plan_statistics(strategy)
            return replace(own, moments=False, numbers="int8") if own and strategy.member else own

        def decode(sent: Any, shape: Any) -> Statistics:
            size = sent[class_statistics.ROWS].shape[1]
            whole = size in {class_sums.row_bytes(shape[1], numbers) for numbers in ("int8", "float16")}
            return here.decode(sent, shape if whole else (shape[0], size - class_sums.ROW.itemsize))

        def add(rounds: Any, sent: Statistics, late: Any, devices: int = 1) -> None:
            if sent.sums.sums.shape[1] == self.width:
                here.add(rounds, sent, late, devices)
            else:
                waiting.append((sent, late, devices))

        def closed(rounds: Any, memory: Any) -> Any:
            for sent, late, devices in waiting:
                here.add(rounds, self.mapped(sent), late, devices)
            waiting.clear()
            self.sums = DECAY * self.sums
            return here.closed(rounds, memory)

        def bounded(bounds: Any) -> Iterator[Statistics]:
            return iter(bounds._sent)

        kind_statistics.train, kind_statistics._can_send = train, lambda kind: True
        kind_statistics.statistics_of, class_statistics.decode = statistics_of, decode
        closed_form.RoundStatistics.add, closed_form.RoundStatistics.closed = add, closed
        StatisticsBounds.bounded = bounded

    def mapped(self, sent: Statistics) -> Statistics:
        """A part's statistics as if they were of the whole network's features."""
        mean = self.sums[-1, :-1] / self.sums[-1, -1]
        covariance = self.sums[:-1, :-1] / self.sums[-1, -1] - np.outer(mean, mean)
        own = covariance[self.width :, self.width :]
        own = own + RIDGE * np.trace(own) / len(own) * np.eye(len(own))
        slopes = np.linalg.solve(own, covariance[self.width :, : self.width])
        counts = sent.sums.counts[:, None]
        means = sent.sums.sums / np.maximum(1, counts)
        means = mean[: self.width] + (means - mean[self.width :]) @ slopes
        nothing = Statistics.none(len(counts), self.width)
        return replace(nothing, sums=ClassSums(means * counts, sent.sums.counts), stands_for=sent.stands_for)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    registry.register(gain_of_forms.OneForm)
    WidthSlice.derive, WidthSlice.fold = derived, folded
    results, maps = json.loads(options.out.read_text()) if options.out.exists() else {}, Maps()
    for seed in range(options.seeds):
        for variant in ("dropped", *VARIANTS):
            for division in gain_of_forms.DIVISIONS:
                key, VARIANT[0] = f"{variant}/{division}/{seed}", variant
                if key not in results:
                    maps.patch(variant == "statistics")
                    form = "" if variant == "dropped" else FORM
                    results[key] = gain_of_forms.run(form, division, seed, options.rounds)[0]
                    options.out.write_text(json.dumps(results))
                    print(key, results[key], flush=True)
    rows = []
    for variant in VARIANTS:
        cells = [
            [results[f"{v}/{division}/{seed}"] for seed in range(options.seeds)]
            for v in (variant, "dropped")
            for division in gain_of_forms.DIVISIONS
        ]
        gains = [np.mean(cells[place]) - np.mean(cells[place + 2]) for place in (0, 1)]
        rows.append((variant, *(f"{gain:+.1f}" for gain in gains)))
    print(tabulate(rows, headers=("variant", *gain_of_forms.DIVISIONS), disable_numparse=True))


if __name__ == "__main__":
    main()
