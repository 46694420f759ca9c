"""Does a bundle compute the same on another processor, or another version of ONNX Runtime?

    .venv/bin/python benchmarks/platforms.py --write here.npz bundles/pets bundles/reviews
    python benchmarks/platforms.py --compare here.npz bundles/pets bundles/reviews      # on the other one

Every graph of each bundle runs on the same drawn samples; what differs is shown relative to the largest value
of the output, and the exit code is 1 if anything differs by more than 1e-5. Needs what a device needs.
Gradients "in blocks" are those of ONNX Runtime's blocked layout, where it has one: blocks of 16 channels, or
of 8 in `qemu-x86_64-static -cpu Haswell python benchmarks/platforms.py ..`.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import PRECISIONS

SAMPLES = 8
MOST = 1e-5

Values = np.ndarray[Any, Any]


def outputs(folder: Path) -> Iterator[tuple[str, Values]]:
    """Name and value of everything that the graphs of a bundle give."""
    bundle = Bundle.open(folder)
    model, rng, spec = OnnxModel(bundle), np.random.default_rng(0), bundle.manifest.input
    shape = (SAMPLES, *spec.shape)
    ids = spec.vocabulary
    x = rng.standard_normal(shape, np.float32) if ids is None else rng.integers(0, ids, shape)
    y = rng.integers(0, len(bundle.manifest.labels), SAMPLES)
    for precision in PRECISIONS:
        name = "forward" if precision == "float32" else f"forward.{precision}"
        if name in bundle.manifest.graphs:
            yield name, OnnxModel(bundle, precision=precision).logits(x)
    for name, graph in bundle.manifest.graphs.items():
        kind, _, of = name.partition(".")
        if kind == "features":
            yield name, model.level_features(x, of)
        elif kind == "loss":
            yield name, np.array(model.probe(of).loss(x, y))
        elif kind not in ("forward", "ort-training"):
            shapes = {e.name: (SAMPLES, *e.shape) if e.per_sample else e.shape for e in graph.extras}
            extras = {key: 0.5 + rng.random(shape, np.float32) for key, shape in shapes.items()}
            for batch, layout in ((0, name), (SAMPLES, f"{name} in blocks")):
                trainer = model.trainer(of, kind, batch)
                yield f"{layout} loss", np.array(trainer.loss_and_grads(x, y, extras))
                yield f"{layout} gradients", trainer.grads.vector
                if trainer.statistics.vector.size:
                    yield f"{layout} statistics", trainer.statistics.vector


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE")
    what.add_argument("--compare", type=Path, metavar="FILE")
    options = parser.parse_args()
    outputs_: dict[str, Values] = {}
    for folder in options.bundles:
        print(folder, file=sys.stderr, flush=True)
        outputs_.update({f"{folder.name}: {name}": np.array(value) for name, value in outputs(folder)})
    if options.write:
        np.savez(options.write, **outputs_)
        return 0
    expected = np.load(options.compare)
    off = {
        k: float(np.abs(v - expected[k]).max() / max(np.abs(expected[k]).max(), 1e-9))
        for k, v in outputs_.items()
    }
    rows = [(name, f"{value:.1e}") for name, value in off.items()]
    print(f"{platform.machine()}, ONNX Runtime {metadata.version('onnxruntime')}, numpy {np.__version__}")
    print(tabulate(rows, ("output", "off by"), disable_numparse=True, colalign=("left", "right")))
    print(f"at most {max(off.values()):.1e}")
    return int(max(off.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
