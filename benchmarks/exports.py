"""Every network really exported, gated and trained: seconds, graph sizes, session starts, worst difference.

    .venv/bin/python benchmarks/exports.py                             # every network, some 15 minutes
    .venv/bin/python benchmarks/exports.py --only wrn-10 'vit*'        # * and ?
    .venv/bin/python benchmarks/exports.py --list

Weights are random; statistics of batch normalisation are those of random images. `export s` is the time of
the whole bundle, with its gate; `difference` the worst that the gate found, relative to the tensor's largest
value; `start ms` the median of five new models that make the session; `loss` that of one random batch before
and after five steps of SGD, whose rate is such that the first alone should take off a twentieth. A graph that
torch's exporter had to write is named at the end. A network whose library does not load is left out.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import ModelError
from device_runtime.models.training.optimizer import Sgd

if TYPE_CHECKING:
    from torch import nn

    from device_runtime.models.export.export import CheckedGraph

SETS = ("all", "mid", "head", "bias")
SAMPLES = 8
STEPS = 5
STARTS = 5
SHARE = 0.05  # of the loss, which the first step would take off if it were linear
CALIBRATIONS = 30  # batches that move the statistics of batch normalisation


@dataclass(frozen=True)
class Network:
    """A network of `models.networks` with its settings, what it takes, and what is trained."""

    build: str
    settings: dict[str, int | str]
    input: InputSpec
    sets: tuple[str, ...] = SETS
    batchnorm: Literal["frozen", "training"] = "frozen"
    classes: int = 10


def image(side: int) -> InputSpec:
    return InputSpec((3, side, side))


def tokens(length: int, vocabulary: int) -> InputSpec:
    return InputSpec((length,), dtype="int64", vocabulary=vocabulary)


def transformer(build: str) -> Network:
    settings: dict[str, int | str] = {"vocabulary": 1000, "classes": 10, "length": 32}
    return Network(build, {**settings, "dim": 64, "depth": 3, "heads": 4}, tokens(32, 1000))


def vit(size: str, sets: tuple[str, ...] = SETS) -> Network:
    return Network("vit", {"size": size, "image": 64, "patch": 16}, image(64), sets)


NETWORKS = {
    **{f"wrn-{depth}": Network("wrn", {"depth": depth}, image(32)) for depth in (10, 16, 22, 28, 34, 40)},
    **{
        f"wrn-{depth}-batch-{how}": Network("wrn", {"depth": depth, "norm": "batch"}, image(32), SETS, how)
        for depth in (16, 40)
        for how in ("frozen", "training")
    },
    "wrn-16-4": Network("wrn", {"depth": 16, "width": 4}, image(32)),
    "squeezenet-1.0": Network("squeezenet", {"version": "1.0", "classes": 10}, image(64)),
    "squeezenet-1.1": Network("squeezenet", {"version": "1.1", "classes": 10}, image(64)),
    "mobilenet-v2": Network("mobilenet_v2", {"classes": 10}, image(64)),
    "mobilenet-v2-training": Network("mobilenet_v2", {"classes": 10}, image(64), SETS, "training"),
    "resnet18": Network("resnet18", {"classes": 10}, image(64)),
    "mobilenet-v3-small": Network("mobilenet_v3_small", {"classes": 10}, image(64)),
    "shufflenet-v2": Network("shufflenet_v2_x0_5", {"classes": 10}, image(64)),
    "efficientnet-b0": Network("efficientnet_b0", {"classes": 10}, image(64)),
    "vit-tiny": vit("tiny"),
    "vit-small": vit("small", ("mid", "head", "bias")),
    "vit-base": vit("base", ("head", "bias")),
    "lstm": Network("lstm", {"classes": 10}, tokens(40, 10000)),
    "gru": Network("gru", {"classes": 10}, tokens(40, 10000)),
    "keywords": Network("keywords", {}, InputSpec((1, 61, 40)), classes=12),
    "keywords-batch": Network("keywords", {"norm": "batch"}, InputSpec((1, 61, 40)), classes=12),
    "distilbert": transformer("distilbert"),
    "roberta": transformer("roberta"),
}


@dataclass
class Exported:
    """A bundle, the worst difference and bytes of each of its graphs, and who had to write them."""

    bundle: Bundle
    seconds: float
    checked: dict[str, CheckedGraph] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)


def built(network: Network) -> nn.Module:
    """With the weights of seed 0, and statistics of random inputs, without which outputs fade out."""
    import torch

    from device_runtime.models.networks import build

    torch.manual_seed(0)
    module = build(network.build, network.settings)
    if any(isinstance(part, torch.nn.BatchNorm2d) for part in module.modules()):
        with torch.no_grad():
            for _ in range(CALIBRATIONS):
                module.train()(torch.randn(SAMPLES, *network.input.shape))
    return module.eval()


def samples(network: Network) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Inputs and labels: standard normal, or token ids."""
    rng = np.random.default_rng(0)
    shape = (SAMPLES, *network.input.shape)
    y = rng.integers(network.classes, size=SAMPLES)
    if network.input.vocabulary is not None:
        return rng.integers(network.input.vocabulary, size=shape), y
    return rng.standard_normal(shape, np.float32), y


def exported(name: str, folder: Path) -> Exported:
    """Raises ExportError where its library does not load, ParityError."""
    from device_runtime.models.export.export import ExportSpec, ExportWatch, export

    network = NETWORKS[name]
    labels = tuple(str(label) for label in range(network.classes))
    sets: dict[str, dict[str, Any]] = {tunable: {} for tunable in network.sets}
    spec = ExportSpec(name, network.input, labels, sets=sets, batchnorm=network.batchnorm)
    module = built(network)
    checked: dict[str, CheckedGraph] = {}

    def report(graph: CheckedGraph) -> None:
        say(f"  {graph.name}: {graph.bytes / 1e3:.0f} KB, {graph.worst:.1e}")
        checked[graph.name] = graph

    began = time.perf_counter()
    with elsewhere() as messages:
        bundle = export(module, spec, folder, ExportWatch(report=report))
    return Exported(bundle, time.perf_counter() - began, checked, messages)


@contextmanager
def elsewhere() -> Iterator[list[str]]:
    """What the writer of graphs says of those that it leaves to torch's exporter."""
    messages: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("device_runtime.models.export.graph"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def start_ms(bundle: Bundle, tunable: str) -> float:
    """Median of making the session in a new model."""
    times = []
    for _ in range(STARTS):
        model = OnnxModel(bundle)
        began = time.perf_counter()
        model.trainer(tunable)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def losses(bundle: Bundle, network: Network, tunable: str) -> tuple[float, float]:
    """Of one batch, before and after the steps."""
    trainer = OnnxModel(bundle).trainer(tunable)
    x, y = samples(network)
    before = trainer.loss_and_grads(x, y)
    square = float(trainer.grads.vector @ trainer.grads.vector)
    steps = Sgd(lr=SHARE * before / square).start(trainer.params.vector)
    for _ in range(STEPS):
        trainer.loss_and_grads(x, y)
        steps.step(trainer.params.vector, trainer.grads.vector)
    return before, trainer.loss_and_grads(x, y)


def measure(name: str, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each training graph, and what torch's exporter had to write."""
    network = NETWORKS[name]
    done = exported(name, folder)
    forward = done.checked["forward"].bytes / 1e3
    rows = []
    for tunable in network.sets:
        graph = done.checked[f"train.{tunable}"]
        before, after = losses(done.bundle, network, tunable)
        rows.append({
            "network": name, "set": tunable, "export s": done.seconds, "forward KB": forward,
            "train KB": graph.bytes / 1e3, "start ms": start_ms(done.bundle, tunable),
            "difference": max(graph.worst, done.checked[f"loss.{tunable}"].worst),
            "loss": f"{before:.3f} to {after:.3f}{'' if after < before else ', NOT LOWER'}",
        })  # fmt: skip
        say(f"  {tunable}: starts in {rows[-1]['start ms']:.0f} ms, loss {rows[-1]['loss']}")
    return rows, [f"{name}: {message}" for message in done.elsewhere]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="those that it names")
    parser.add_argument("--list", action="store_true", help="the names, and nothing else")
    options = parser.parse_args()
    names = [name for name in NETWORKS if any(fnmatch(name, pattern) for pattern in options.only)]
    if options.list:
        print("\n".join(names))
        return
    import torch

    torch.set_num_threads(1)
    table, notes = [], []
    for index, name in enumerate(names, start=1):
        say(f"{index} of {len(names)}: {name}")
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows, written = measure(name, Path(folder) / name)
            except ModelError as error:
                rows, written = [], [f"{name}: {type(error).__name__}: {error}"]
                say(f"  {error}")
        table.extend(rows)
        notes.extend(written)
    print(tabulate(table, headers="keys", floatfmt=("", "", ".0f", ".0f", ".0f", ".0f", ".1e")))
    print("\n".join(notes))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    main()
