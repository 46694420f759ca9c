"""What a private training step costs: milliseconds of a step of 32 samples, ordinary and DP-SGD.

    .venv/bin/python benchmarks/private_step.py                     # some minutes
    .venv/bin/python benchmarks/private_step.py --networks gru --cache bundles
    .venv/bin/python benchmarks/private_step.py --cuda              # the torch engine on a GPU

The step is forward, cross-entropy and backward; the private one clips each sample's gradient and adds noise.
ONNX Runtime goes sample by sample, torch too (`torch one by one`) where the network cannot be run at once.
Medians of processor time on one thread, of wall time with --cuda.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from engines import NETWORKS, Row, built, exported, samples, say
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import NO_EXTRAS, DeviceModel, Gradients, Inputs, Labels
from device_runtime.models.training.optimizer import Privacy, PrivateGradients

BATCH = 32
SETS = ("all", "bias", "head")
USUAL = ("wrn-16-1-group", "vit-192-6-8", "gru")


class OneByOne:
    """A trainer that hides what it can do with many samples."""

    def __init__(self, trainer: Gradients) -> None:
        self.params, self.grads, self.statistics = trainer.params, trainer.grads, trainer.statistics
        self._trainer = trainer

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        return self._trainer.loss_and_grads(x, y, extras)


def steps(row: Row, folder: Path, device: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is timed, by its column."""
    from device_runtime.models.torch_engine.engine import TorchModel

    x, y = samples(row)

    def ordinary(model: DeviceModel) -> Callable[[], object]:
        trainer = model.trainer(row.tunable)
        return lambda: trainer.loss_and_grads(x, y)

    def private(trainer: Gradients) -> Callable[[], object]:
        gradients = PrivateGradients(trainer, Privacy(1.0, 1.0, np.random.default_rng(0)), BATCH)
        return lambda: gradients.loss_and_grads(x, y)

    bundle = Bundle.open(folder)
    if device == "cpu":
        onnx = OnnxModel(bundle)
        yield "onnx", ordinary(onnx)
        yield "onnx private", private(onnx.trainer(row.tunable))
    torch = TorchModel(bundle, module=built(row.network), device=device)
    yield "torch", ordinary(torch)
    yield "torch private", private(torch.trainer(row.tunable))
    yield "torch one by one", private(OneByOne(torch.trainer(row.tunable)))


def timed(row: Row, folder: Path, device: str, repeats: int) -> dict[str, Any]:
    """Median milliseconds of each column, the steps in turns."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {}
    by_name = dict(steps(row, folder, device))
    for turn in range(-1, repeats):
        for name, step in by_name.items():
            began = clock()
            step()
            if turn >= 0:
                times.setdefault(name, []).append(1e3 * (clock() - began))
    return {"network": row.network, "set": row.tunable, **{name: median(ms) for name, ms in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=USUAL, metavar="NETWORK")
    parser.add_argument("--cuda", action="store_true", help="torch alone, on a GPU")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cache", type=Path, help="where exported bundles are kept for the next time")
    options = parser.parse_args()
    device = "cuda" if options.cuda else "cpu"
    with tempfile.TemporaryDirectory() as temporary:
        table = []
        for network in options.networks:
            folder = exported(network, options.cache or Path(temporary))
            for tunable in SETS:
                say(f"{network}/{tunable}")
                table.append(timed(Row(network, tunable, 1, BATCH), folder, device, options.repeats))
    print(tabulate(table, headers="keys", floatfmt=".1f"))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    main()
