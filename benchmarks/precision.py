"""Forward graphs in float32, int8 and float16: what they cost and how far off they are.

    .venv/bin/python benchmarks/precision.py                  # some minutes; real data of ../shared/data
    .venv/bin/python benchmarks/precision.py --repeats 1      # a look

Each row is the median of new processes that open the bundle, make the initialisers, let go of the float32
weights and of freed memory, and run batches of 8 on one thread: MB of initialisers, milliseconds for a batch,
MB resident after 20 batches and at the peak, both beyond a process that has imported ONNX Runtime. Linux
only. A precision that its gate refuses has no row.

Accuracy: SqueezeNet 1.0 and MobileNetV2 as nearest class mean on CIFAR-10, the WRN trained on digits for
two epochs. The ViTs have random weights; "agree" is the share of 64 random inputs with the label of float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from msgspec.structs import replace
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.machine_readings import trim_heap
from device_runtime.models.bundles import weights
from device_runtime.models.bundles.bundle import Bundle, shipped_folder, write
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.names import PRECISIONS
from device_runtime.models.engines.onnx_session import LoadedGraph, SessionSettings, load_session, onnxruntime
from device_runtime.models.errors import ParityError

DATA = Path(__file__).parents[2] / "shared" / "data"
BATCH = 8
BATCHES = 20
TRAIN, TEST = 2000, 1000
Matrix = NDArray[np.float32]


def graph_name(precision: str) -> str:
    """Of the forward graph in a bundle."""
    return "forward" if precision == "float32" else f"forward.{precision}"


def opened(bundle: Bundle, precision: str) -> LoadedGraph:
    """A forward session that leaves nothing in memory but what it needs."""
    name = graph_name(precision)
    graph = bundle.manifest.graphs[name]
    initialisers = weights.initialisers(graph, bundle.weights())
    trim_heap()
    loaded = load_session(name, graph, bundle.graph(name), initialisers, SessionSettings())
    trim_heap()
    return loaded


def measure_here(folder: str, precision: str) -> dict[str, float]:
    """Of this process, which should be new: see the module."""
    onnxruntime()
    process = psutil.Process()
    base = process.memory_info().rss
    bundle = Bundle.open(folder)
    loaded = opened(bundle, precision)
    x = np.random.default_rng(0).standard_normal((BATCH, *bundle.manifest.input.shape), np.float32)
    seconds = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        loaded.run(["logits", "features"], {"x": x})
        seconds.append(time.perf_counter() - began)
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent before exec, too
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    return {
        "weights": sum(value.nbytes for value in loaded.frozen.values()) / 1e6,
        "ms": 1e3 * median(seconds),
        "held": (process.memory_info().rss - base) / 1e6,
        "peak": (peak - base) / 1e6,
    }


def measure(bundle: Bundle, repeats: int) -> dict[str, dict[str, float]]:
    """By precision, in turns, so that a busy moment of the machine hits each."""
    precisions = [precision for precision in PRECISIONS if graph_name(precision) in bundle.manifest.graphs]
    figures: dict[str, list[dict[str, float]]] = {precision: [] for precision in precisions}
    for _ in range(repeats):
        for precision in precisions:
            command = [sys.executable, __file__, "--measure", str(bundle.path), precision]
            figures[precision].append(json.loads(subprocess.check_output(command, text=True)))
    return {
        precision: {key: median(run[key] for run in runs) for key in runs[0]}
        for precision, runs in figures.items()
    }


@dataclass(frozen=True)
class Network:
    """A bundle, and how right it is when this gives its outputs: x -> logits and features."""

    bundle: Bundle
    score: Callable[[Callable[[Matrix], list[Matrix]]], tuple[str, float]]


def with_precisions(bundle: Bundle, folder: Path) -> Bundle:
    """The bundle with its forward graph in each precision that passes the gate."""
    from device_runtime.models.export.quantise import lower_forward

    weights = bundle.weights()
    manifest, files = bundle.manifest, {name: bundle.graph(name) for name in bundle.manifest.graphs}
    for precision in PRECISIONS[1:]:
        try:
            export_ = lower_forward(files["forward"], weights, manifest.input, precision)
        except ParityError as error:
            print(f"{manifest.name}: {error}", file=sys.stderr)
            continue
        files[f"forward.{precision}"] = export_.onnx
        manifest = replace(manifest, graphs=manifest.graphs | {f"forward.{precision}": export_.graph})
    return write(folder, manifest, weights, files)


def convolutional(name: str, settings: dict[str, str], spec: InputSpec, folder: Path) -> Network:
    """A network of ImageNet; accuracy of nearest class means, cosine, on CIFAR-10 at 128 pixels."""
    import ncm_cifar10

    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build
    from device_runtime.models.torch_modules.parameters import load_weights

    module = build(name.removesuffix("1_0"), {**settings, "classes": 10})
    load_weights(module, DATA / f"{name}_imagenet.npz", skip_head="classifier.1")
    labels = tuple(str(number) for number in range(10))
    bundle = export(module, ExportSpec(name, spec, labels, sets={"head": {}}, objectives=()), folder / "a")
    train, test = ncm_cifar10.read("train", TRAIN), ncm_cifar10.read("test", TEST)

    def score(run: Callable[[Matrix], list[Matrix]]) -> tuple[str, float]:
        train_features, test_features = (
            np.concatenate([run(spec.prepare(part))[1] for part in photos.parts()])
            for photos in (train, test)
        )
        means = np.stack([train_features[train.y == label].mean(0) for label in range(10)])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return "accuracy", float(((test_features @ means.T).argmax(1) == test.y).mean())

    return Network(with_precisions(bundle, folder / "b"), score)


def digits(folder: Path) -> Network:
    """The shipped bundle after two epochs of SGD; accuracy on 360 digits."""
    from device_runtime.models.available_engines.onnx_engine import OnnxModel
    from device_runtime.simulation.digits import load

    bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
    rng = np.random.default_rng(0)
    split = load(rng)
    x, trainer = bundle.manifest.input.prepare(split.train.x), OnnxModel(bundle).trainer()
    for _ in range(2):
        for chosen in np.array_split(rng.permutation(len(x)), len(x) // 32):
            trainer.loss_and_grads(x[chosen], split.train.y[chosen])
            trainer.params.vector[:] -= np.float32(0.1) * trainer.grads.vector
    weights = {**bundle.weights(), **trainer.params.tensors()}
    graphs = {name: bundle.graph(name) for name in bundle.manifest.graphs}
    trained = write(folder / "a", bundle.manifest, weights, graphs)
    tests = bundle.manifest.input.prepare(split.test.x)

    def score(run: Callable[[Matrix], list[Matrix]]) -> tuple[str, float]:
        return "accuracy", float((run(tests)[0].argmax(1) == split.test.y).mean())

    return Network(with_precisions(trained, folder / "b"), score)


def transformer(size: str, folder: Path) -> Network:
    """Random weights; agreement with float32 on random inputs."""
    import torch

    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(0)
    module, spec = build("vit", {"size": size}), InputSpec((3, 224, 224))
    labels = tuple(str(number) for number in range(10))
    plain = export(
        module, ExportSpec(f"vit-{size}", spec, labels, sets={"head": {}}, objectives=()), folder / "a"
    )
    bundle = with_precisions(plain, folder / "b")
    x = np.random.default_rng(1).standard_normal((64, *spec.shape), np.float32)
    exact = run_with(opened(bundle, "float32"))(x)[0].argmax(1)

    def score(run: Callable[[Matrix], list[Matrix]]) -> tuple[str, float]:
        return "agree", float((run(x)[0].argmax(1) == exact).mean())

    return Network(bundle, score)


def run_with(loaded: LoadedGraph) -> Callable[[Matrix], list[Matrix]]:
    """x of any length -> logits and features."""

    def run(x: Matrix) -> list[Matrix]:
        parts = [
            loaded.run(["logits", "features"], {"x": x[start : start + BATCH]})
            for start in range(0, len(x), BATCH)
        ]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="processes for each row (default: 5)")
    parser.add_argument("--measure", nargs=2, metavar=("BUNDLE", "PRECISION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_here(*options.measure)))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    squeezenet = InputSpec((3, 128, 128), 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    mobilenet = InputSpec((3, 128, 128), 1 / 127.5, (1.0,), (1.0,))
    makers: dict[str, Callable[[Path], Network]] = {
        "WRN-10-1, digits": digits,
        "SqueezeNet 1.0": lambda f: convolutional("squeezenet1_0", {"version": "1.0"}, squeezenet, f),
        "MobileNetV2": lambda f: convolutional("mobilenet_v2", {"padding": "same"}, mobilenet, f),
        "ViT tiny": lambda f: transformer("tiny", f),
        "ViT small": lambda f: transformer("small", f),
    }
    rows = []
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as folder:
            network = make(Path(folder))
            costs = measure(network.bundle, options.repeats)
            for precision, cost in costs.items():
                what, score = network.score(run_with(opened(network.bundle, precision)))
                figures = (cost[key] for key in ("weights", "ms", "held", "peak"))
                rows.append((name, precision, *figures, f"{score:.3f} {what}"))
                print(*rows[-1], file=sys.stderr)
    headers = ("network", "weights as", "MB", "ms", "held MB", "peak MB", "right")
    print(tabulate(rows, headers, floatfmt=("", "", ".2f", ".1f", ".0f", ".0f", "")))


if __name__ == "__main__":
    main()
