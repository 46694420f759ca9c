"""A training step on ONNX Runtime and in torch: milliseconds, memory, start of the session, graph size.

    .venv/bin/python benchmarks/engines.py                          # every row, about an hour
    .venv/bin/python benchmarks/engines.py --quick                  # a look, some minutes
    .venv/bin/python benchmarks/engines.py --rows 'wrn*/all/1/*'    # network/set/threads/batch; * and ?
    .venv/bin/python benchmarks/engines.py --cache bundles --json engines.json

A step is forward, cross-entropy, backward and SGD with momentum and weight decay. torch's is eager, with its
own LSTM and GRU; batch normalisation is frozen in both. Steps of the two engines, and of ONNX Runtime with
convolutions in the usual layout, take turns in one process. Times are medians, `ratio` is ONNX over torch.
`cpu` and `least` are the ratios of median and least processor times, which a busy machine changes less, and
`usual` is the ratio of the least ones in the usual layout. Memory is the peak of a new process for each
engine, with 5 steps on one thread, so it is shared by the rows of both numbers of threads. `start` is the
median of making the session five times. A batch above 32, or with too large activations, is run on ONNX
Runtime as micro-batches with summed gradients. Linux only.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.training.optimizer import Sgd

if TYPE_CHECKING:
    from torch import nn

SETS = ("all", "mid", "bias", "head")
THREADS = (1, 2)
BATCHES = (1, 8, 32, 128)
CLASSES = 10
STEPS = 5  # of a process whose memory is measured
STARTS = 5
PAUSE_S = 0.02  # before a step: torch's threads spin for some milliseconds after theirs, and hold a core
SGD = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 5e-4}


@dataclass(frozen=True)
class Network:
    """A network of `models.networks` with its settings, and what it takes."""

    build: str
    settings: dict[str, int | str]
    input: InputSpec


IMAGE = InputSpec((3, 32, 32))
TEXT = InputSpec((40,), dtype="int64", vocabulary=10000)
LARGER = InputSpec((3, 64, 64))
NETWORKS = {
    "wrn-16-1-group": Network("wrn", {"depth": 16, "norm": "group"}, IMAGE),
    "wrn-16-1-batch": Network("wrn", {"depth": 16, "norm": "batch"}, IMAGE),
    "mobilenet-v2": Network("mobilenet_v2", {"classes": CLASSES}, LARGER),
    "resnet-18": Network("", {}, IMAGE),
    "squeezenet": Network("squeezenet", {"classes": CLASSES}, LARGER),
    "keywords": Network("keywords", {"classes": CLASSES}, InputSpec((1, 61, 40))),
    "cnn": Network("cnn", {"classes": CLASSES}, IMAGE),
    "vit-192-6-8": Network("vit", {"dim": 192, "depth": 6, "heads": 3, "patch": 8, "image": 32}, IMAGE),
    "gru": Network("gru", {"classes": CLASSES}, TEXT),
    "lstm": Network("lstm", {"classes": CLASSES}, TEXT),
}


@dataclass(frozen=True)
class Row:
    """What one step is of."""

    network: str
    tunable: str
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.network}/{self.tunable}/{self.threads}/{self.batch}"


def samples(row: Row) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Inputs and labels: standard normal, or token ids."""
    rng = np.random.default_rng(0)
    spec = NETWORKS[row.network].input
    shape = (row.batch, *spec.shape)
    y = rng.integers(CLASSES, size=row.batch)
    if spec.vocabulary is not None:
        return rng.integers(spec.vocabulary, size=shape), y
    return rng.standard_normal(shape, np.float32), y


def onnx_step(row: Row, folder: Path, batch: int | None = None) -> Callable[[], object]:
    """A step of the bundle on ONNX Runtime; in the usual layout if `batch` is 0."""
    prepared = row.batch if batch is None else batch
    trainer = OnnxModel(Bundle.open(folder), threads=row.threads).trainer(row.tunable, batch=prepared)
    steps = Sgd(**SGD).start(trainer.params.vector)
    x, y = samples(row)

    def step() -> None:
        trainer.loss_and_grads(x, y)
        steps.step(trainer.params.vector, trainer.grads.vector)

    return step


def torch_step(row: Row, folder: Path) -> Callable[[], object]:
    """A step in torch that trains the same tensors."""
    import torch

    torch.set_num_threads(row.threads)
    specs = Bundle.open(folder).manifest.specs(row.tunable)
    module = native(built(row.network)).eval()
    trained = {spec.name for spec in specs}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    free = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert len(free) == len(trained), f"{row}: torch trains {len(free)} tensors, ONNX {len(trained)}"
    optimizer = torch.optim.SGD(free, **SGD)
    x, y = (torch.from_numpy(array) for array in samples(row))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def built(name: str) -> nn.Module:
    """The network with the weights of seed 0."""
    import torch

    from device_runtime.models.networks import build

    torch.manual_seed(0)
    if not NETWORKS[name].build:
        return resnet_18()
    return build(NETWORKS[name].build, NETWORKS[name].settings)


def resnet_18() -> nn.Module:
    """ResNet-18 (He et al. 2016) for images of 32x32: a first convolution of 3x3, no pooling."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, ins: int, outs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(outs), nn.BatchNorm2d(outs)
            self.conv2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
            short = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))
            self.shortcut = nn.Identity() if (ins, stride) == (outs, 1) else short

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + self.shortcut(x))

    sizes = (64, 64, 128, 256, 512)
    blocks = [
        Block(ins if first else outs, outs, 2 if first and outs > 64 else 1)
        for ins, outs in pairwise(sizes)
        for first in (True, False)
    ]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def native(module: nn.Module) -> nn.Module:
    """With torch's own recurrent layers, which have the same parameters, in place of ours."""
    import torch

    rnn = getattr(module, "rnn", None)
    if rnn is None:
        return module
    gates_hidden, inputs = rnn.weight_ih_l0.shape
    hidden = rnn.weight_hh_l0.shape[1]
    kind = torch.nn.LSTM if gates_hidden == 4 * hidden else torch.nn.GRU

    class Last(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return super().forward(x)[0]

    own = Last(inputs, hidden, num_layers=2, batch_first=True)
    own.load_state_dict(rnn.state_dict())
    module = copy.deepcopy(module)
    module.rnn = own
    return module


STEP = {"onnx": onnx_step, "torch": torch_step}


def exported(name: str, cache_folder: Path) -> Path:
    """The bundle of a network, made unless it is there."""
    folder = cache_folder / name
    if not (folder / "manifest.json").exists():
        from device_runtime.models.export.export import ExportSpec, export

        labels = tuple(str(label) for label in range(CLASSES))
        spec = ExportSpec(name, NETWORKS[name].input, labels, sets={tunable: {} for tunable in SETS})
        export(built(name), spec, folder, lambda graph: say(f"{name}: {graph.name}"))
    return folder


def timed(row: Row, folder: Path, repeats: int) -> dict[str, float]:
    """Median milliseconds of both engines, in turns, and quotients."""
    steps = {engine: make(row, folder) for engine, make in STEP.items()}
    steps["usual"] = onnx_step(row, folder, batch=0)
    wall: dict[str, list[float]] = {engine: [] for engine in steps}
    cpu: dict[str, list[float]] = {engine: [] for engine in steps}
    for turn in range(-3, repeats):
        for engine in sorted(steps, reverse=bool(turn % 2)):
            time.sleep(PAUSE_S)
            began, cpu_began = time.perf_counter(), time.process_time()
            steps[engine]()
            if turn >= 0:
                cpu[engine].append(1e3 * (time.process_time() - cpu_began))
                wall[engine].append(1e3 * (time.perf_counter() - began))
    figures = {f"{engine} ms": median(wall[engine]) for engine in STEP}
    figures["ratio"] = figures["onnx ms"] / figures["torch ms"]
    figures["cpu"] = median(cpu["onnx"]) / median(cpu["torch"])
    figures["least"], figures["usual"] = (
        min(cpu[engine]) / min(cpu["torch"]) for engine in ("onnx", "usual")
    )
    return figures


def peak_here(engine: str, row: Row, folder: Path) -> dict[str, float]:
    """Peak megabytes (1e6 bytes) of this process, which should be new; for ONNX the start of the session."""
    step = STEP[engine](row, folder)
    for _ in range(STEPS):
        step()
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent before exec, too
    figures = {f"{engine} MB": 1024 * int(status.partition("VmHWM:")[2].split()[0]) / 1e6}
    if engine == "onnx":
        figures["start ms"] = median(_start_ms(row, folder) for _ in range(STARTS))
    return figures


def _start_ms(row: Row, folder: Path) -> float:
    model = OnnxModel(Bundle.open(folder), threads=row.threads)
    began = time.perf_counter()
    model.trainer(row.tunable, batch=row.batch)
    return 1e3 * (time.perf_counter() - began)


@cache
def measured_apart(engine: str, row: Row, folder: Path) -> dict[str, float]:
    """What `peak_here` finds in a new process."""
    command = [sys.executable, __file__, "--measure", engine, str(folder), json.dumps(asdict(row))]
    figures: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return figures


def measure(row: Row, folder: Path, repeats: int) -> dict[str, Any]:
    """All columns of a row."""
    figures: dict[str, Any] = {**asdict(row), **timed(row, folder, repeats)}
    alone = Row(row.network, row.tunable, 1, row.batch)
    for engine in STEP:
        figures.update(measured_apart(engine, alone, folder))
    figures["of torch"] = figures["onnx MB"] / figures["torch MB"]
    figures["graph KB"] = Bundle.open(folder).entry(f"train.{row.tunable}").bytes / 1e3
    return figures


def rows(patterns: Iterable[str]) -> Iterator[Row]:
    """Those that a pattern names."""
    for name in NETWORKS:
        for tunable in SETS:
            for threads in THREADS:
                for batch in BATCHES:
                    row = Row(name, tunable, threads, batch)
                    if any(fnmatch(str(row), pattern) for pattern in patterns):
                        yield row


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="PATTERN", help="network/set/threads/batch; all of them")
    parser.add_argument("--quick", action="store_true", help="batch 8, one thread, 8 repeats")
    parser.add_argument("--repeats", type=int, help="steps of each engine (30)")
    parser.add_argument("--cache", type=Path, help="where exported bundles are kept for the next time")
    parser.add_argument("--json", type=Path, help="where all figures go, too")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        engine, folder, row = options.measure
        print(json.dumps(peak_here(engine, Row(**json.loads(row)), Path(folder))))
        return
    repeats = options.repeats or (8 if options.quick else 30)
    table_rows = list(rows(options.rows or (["*/1/8"] if options.quick else ["*"])))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.cache or Path(temporary)
        table = []
        for index, row in enumerate(table_rows, start=1):
            say(f"{index} of {len(table_rows)}: {row}")
            table.append(measure(row, exported(row.network, folder), repeats))
            if options.json:
                options.json.write_text(json.dumps(table, indent=1))
    formats = ("", "", "", "", ".1f", ".1f", ".2f", ".2f", ".2f", ".2f", ".0f", ".0f", ".0f", ".2f", ".0f")
    print(tabulate(table, headers="keys", floatfmt=formats))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    main()
