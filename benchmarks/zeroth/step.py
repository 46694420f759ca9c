"""A zeroth-order step on ONNX Runtime, over plain inference and over MeZO in torch.

    .venv/bin/python benchmarks/zeroth_order.py step                # every row, about half an hour
    .venv/bin/python benchmarks/zeroth_order.py step --networks wrn-16-1 --sets all --repeats 5

A step is what a device does in a round: the losses, and the update replayed into its model. `passes` is the
time of the losses (`ZerothOrder.train`) over that of one pass of the forward graph over the same samples, at
the settings that inference has. `making %` is the share of the losses' time that directions and perturbing
take. `torch` is MeZO as published (Malladi et al. 2023, algorithm 1): perturbed in place, back, restored,
normal directions by torch's generator, the same tensors, samples and number of passes; `of torch` is our time
over its time. `held`: peak resident memory of a new process that steps over one that infers, and over
torch's. `loss`: of both after the same passes from the same weights, classes as clouds of their own.
Repetitions of all take turns in one process on one thread; ratios are medians of ratios. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from device_runtime.broker.wire.messages import Step
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.strategies.directions import directions
from device_runtime.strategies.directions.replaying import ScaledDirection, perturb, replay
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

if TYPE_CHECKING:
    from torch import nn

SETS = ("all", "bias", "head")
CLASSES = 10
ENTRY = Path(__file__).parent.parent / "zeroth_order.py"


@dataclass(frozen=True)
class Network:
    """Of `models.networks`, its settings, and a side of the square images it takes."""

    build: str
    settings: dict[str, int | str]
    side: int


NETWORKS = {
    "wrn-16-1": Network("wrn", {"depth": 16, "norm": "batch"}, 32),
    "squeezenet": Network("squeezenet", {"classes": CLASSES}, 64),
    "mobilenet-v2": Network("mobilenet_v2", {"classes": CLASSES}, 64),
    "vit-small": Network("vit", {"size": "small", "patch": 8, "image": 64, "classes": CLASSES}, 64),
}


@dataclass(frozen=True)
class Row:
    """What one step is of. `sides` 1: num_z + 1 passes; 2: 2 num_z."""

    network: str
    tunable: str
    sides: int
    num_z: int
    samples: int
    generator: str
    lr: float = 1e-4

    @property
    def strategy(self) -> ZerothOrder:
        return ZerothOrder(
            num_z=self.num_z, lr=self.lr, tunable=self.tunable, generator=self.generator, sides=self.sides
        )


def samples(row: Row) -> LocalData:
    """A cloud around a random image for each class."""
    rng = np.random.default_rng(0)
    side = NETWORKS[row.network].side
    y = rng.integers(CLASSES, size=row.samples)
    middles = rng.standard_normal((CLASSES, 3, side, side), np.float32)
    return LocalData(middles[y] + rng.standard_normal((row.samples, 3, side, side), np.float32), y)


def built(name: str) -> nn.Module:
    """With the weights of seed 0."""
    import torch

    from device_runtime.models.networks import build

    torch.manual_seed(0)
    return build(NETWORKS[name].build, NETWORKS[name].settings).eval()


def exported(name: str, cache: Path) -> Path:
    """The bundle of a network, made unless it is there."""
    folder = cache / name
    if not (folder / "manifest.json").exists():
        from device_runtime.models.export.export import ExportSpec, export

        side = NETWORKS[name].side
        labels = tuple(str(label) for label in range(CLASSES))
        export(
            built(name),
            ExportSpec(name, InputSpec((3, side, side)), labels, sets={s: {} for s in SETS}),
            folder,
        )
    return folder


class Device:
    """One that steps round by round."""

    def __init__(self, row: Row, folder: Path) -> None:
        self.strategy, self.data = row.strategy, samples(row)
        self.model = OnnxModel(Bundle.open(folder))
        self.round = 0

    def infer(self) -> None:
        """With the session open, unless the model has moved."""
        self.model.logits(self.data.x)

    def losses(self) -> float:
        """The losses of a round; the update of the one before is taken first, unless it was."""
        sent = self.strategy.train(self.model, self.data, Run(self.round, "pi-1", time.perf_counter, 1e9))
        self._sent = sent.tensors["g"]
        return sent.train_loss

    def update(self) -> None:
        strategy = self.strategy
        scalars = tuple(self._sent.tolist())
        step = Step(self.round, strategy.generator, self.round, strategy.tunable, strategy.lr, 1.0, scalars)
        self.model.load(replay(self.model.weights, [step], self.model.manifest, threads=1))
        self.round += 1

    def make(self) -> None:
        """Perturbs as often as the losses take it, and nothing else."""
        probe = self.model.probe(self.strategy.tunable)
        for p in range(self.strategy.num_z):
            for sign in (1, -1)[: self.strategy.sides]:
                along = ScaledDirection(self.round, p, sign * self.strategy.eps, self.strategy.generator)
                perturb(probe.params, self.model.weights, along)


class Mezo:
    """Malladi et al. 2023, algorithm 1 (with n directions: algorithm 2); one-sided: forward differences."""

    def __init__(self, row: Row, folder: Path) -> None:
        import torch

        torch.set_num_threads(1)
        names = set(Bundle.open(folder).manifest.names(row.tunable))
        self.module, self.strategy, self.seed = built(row.network), row.strategy, 0
        self.free = [p for name, p in self.module.named_parameters() if name in names]
        data = samples(row)
        self.x, self.y = torch.from_numpy(data.x), torch.from_numpy(data.y)

    def step(self) -> float:
        import torch

        with torch.inference_mode():
            middle = self.loss() if self.strategy.sides == 1 else 0.0
            moves, losses = [], []
            for _ in range(self.strategy.num_z):
                self.seed += 1
                self.move(self.seed, self.strategy.eps)
                up = self.loss()
                if self.strategy.sides == 2:
                    self.move(self.seed, -2 * self.strategy.eps)
                    middle = self.loss()
                    losses.append(middle)
                self.move(self.seed, self.strategy.eps * (1 if self.strategy.sides == 2 else -1))
                losses.append(up)
                moves.append((self.seed, (up - middle) / (self.strategy.sides * self.strategy.eps)))
            for seed, g in moves:
                self.move(seed, -self.strategy.lr * g / self.strategy.num_z)
        return float(np.mean(losses))

    def move(self, seed: int, scale: float) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        for parameter in self.free:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)

    def loss(self) -> float:
        import torch

        parts = zip(self.x.split(32), self.y.split(32), strict=True)
        entropy = torch.nn.functional.cross_entropy
        total = sum(float(entropy(self.module(x), y, reduction="sum")) for x, y in parts)
        return total / len(self.y)


def timed(row: Row, folder: Path, repeats: int) -> dict[str, Any]:
    """Medians of processor time: it is what a busy machine changes least."""
    ours, still, torchs = Device(row, folder), Device(row, folder), Mezo(row, folder)
    parts: dict[str, Callable[[], object]] = {
        "inference": still.infer,
        "losses": ours.losses,
        "update": ours.update,
        "making": ours.make,
        "mezo": torchs.step,
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(-1, repeats):
        for name, part in parts.items():
            gc.collect()
            began = time.process_time()
            part()
            if turn >= 0:
                times[name].append(1e3 * (time.process_time() - began))

    def ratio(over: str, under: str) -> float:
        return median(a / b for a, b in zip(times[over], times[under], strict=True))

    whole = [a + b for a, b in zip(times["losses"], times["update"], strict=True)]
    return {
        "passes": ratio("losses", "inference"),
        "goal": 2.15 * row.num_z if row.sides == 2 else row.num_z + 1.1,
        "making %": 100 * ratio("making", "losses"),
        "inference ms": median(times["inference"]),
        "update ms": median(times["update"]),
        "of torch": median(a / b for a, b in zip(whole, times["mezo"], strict=True)),
    }


def learnt(row: Row, folder: Path, steps: int) -> dict[str, float]:
    """The loss that both measure in the last tenth of so many steps."""
    ours, torchs, last = Device(row, folder), Mezo(row, folder), max(1, steps // 10)
    curves: dict[str, list[float]] = {"ours": [], "torch": []}
    for _ in range(steps):
        curves["ours"].append(ours.losses())
        ours.update()
        curves["torch"].append(torchs.step())
    return {
        "loss before": curves["ours"][0],
        **{f"loss {name}": float(np.mean(losses[-last:])) for name, losses in curves.items()},
    }


def peak_here(what: str, row: Row, folder: Path) -> float:
    """Peak megabytes (1e6 bytes) of this process, which should be new."""
    if what == "mezo":
        mezo = Mezo(row, folder)
        for _ in range(2):
            mezo.step()
    else:
        device = Device(row, folder)
        for _ in range(3):
            if what == "inference":
                device.infer()
            else:
                device.losses()
                device.update()
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent before exec, too
    return 1024 * int(status.partition("VmHWM:")[2].split()[0]) / 1e6


def measured_apart(what: str, row: Row, folder: Path) -> float:
    """What `peak_here` finds in a new process."""
    command = [sys.executable, str(ENTRY), "step", "--measure", what, str(folder), json.dumps(asdict(row))]
    return float(json.loads(subprocess.check_output(command, text=True)))


def memory(row: Row, folder: Path) -> dict[str, float]:
    peaks = {what: measured_apart(what, row, folder) for what in ("inference", "step", "mezo")}
    return {
        "inference MB": peaks["inference"],
        "step MB": peaks["step"],
        "held": peaks["step"] / peaks["inference"],
        "torch MB": peaks["mezo"],
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--sides", nargs="+", type=int, choices=(1, 2), default=[2, 1])
    parser.add_argument("--num-z", type=int, default=1, help="directions of a step (1)")
    parser.add_argument("--samples", type=int, default=128, help="local samples (128)")
    parser.add_argument(
        "--generators", nargs="+", choices=directions.GENERATORS, default=[directions.RADEMACHER]
    )
    parser.add_argument("--repeats", type=int, default=9, help="steps of each (9); 0: no times")
    parser.add_argument("--no-memory", action="store_true", help="no processes of their own")
    parser.add_argument("--learn", type=int, default=0, help="steps before losses are compared; 0: none (0)")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--cache", type=Path, help="where exported bundles are kept for the next time")
    parser.add_argument("--json", type=Path, help="where all figures go, too")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if args.measure:
        what, folder, row = args.measure
        print(peak_here(what, Row(**json.loads(row)), Path(folder)))
        return
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        cache = args.cache or Path(temporary)
        for name, tunable, sides, generator in product(args.networks, args.sets, args.sides, args.generators):
            row = Row(name, tunable, sides, args.num_z, args.samples, generator, args.lr)
            print(row, file=sys.stderr, flush=True)
            figures: dict[str, Any] = asdict(row)
            if args.repeats:
                figures |= timed(row, exported(name, cache), args.repeats)
            if not args.no_memory:
                figures |= memory(row, exported(name, cache))
            if args.learn:
                figures |= learnt(row, exported(name, cache), args.learn)
            table.append(figures)
            if args.json:
                args.json.write_text(json.dumps(table, indent=1))
    print(tabulate(table, headers="keys", floatfmt=".3g"))
