"""What all peers do: three works, the same samples, weights and orders of batches for each of them.

Only numpy, so that it imports in every peer's environment. Samples are uint8 in .npy files that processes map
into memory, as raw images are; a sample is divided by 255 when it is used. `Job` is a runner's command line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
SCALE = np.float32(1 / 255)
SEED = 1
Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Work:
    """One epoch of SGD on each user's `samples`. `weights` names tensors and gives their shapes.

    `check_lr` is that of checked jobs. At 0.1 rounding decides what work A ends at: where a pooled maximum
    or a ReLU tips over, the step changes; after three rounds the same code is 7e-4 apart in float32 and 64.
    """

    samples: int
    shape: tuple[int, ...]
    batch: int
    lr: float
    check_lr: float
    weights: dict[str, tuple[int, ...]]

    @property
    def trains(self) -> bool:
        return self.samples > 0


WORKS = {
    "A": Work(
        samples=50,
        shape=(3, 32, 32),
        batch=10,
        lr=0.1,
        check_lr=0.01,
        weights={
            "conv1.weight": (32, 3, 3, 3),
            "conv1.bias": (32,),
            "conv2.weight": (64, 32, 3, 3),
            "conv2.bias": (64,),
            "dense.weight": (128, 12544),
            "dense.bias": (128,),
            "head.weight": (10, 128),
            "head.bias": (10,),
        },
    ),
    "B": Work(
        samples=60,
        shape=(784,),
        batch=10,
        lr=0.03,
        check_lr=0.03,
        weights={"head.weight": (10, 784), "head.bias": (10,)},
    ),
    "C": Work(
        samples=0,
        shape=(99,),
        batch=0,
        lr=0.0,
        check_lr=0.0,
        weights={"head.weight": (10, 99), "head.bias": (10,)},
    ),
}


@dataclass(frozen=True)
class Job:
    """What a runner is told. `data` is what `write` made; `check`: batches in the order that is in there.

    A checked job has as many users as its cohort: all take part in every round.
    """

    work: str
    users: int
    cohort: int
    rounds: int
    data: str
    out: str
    workers: int = 2
    check: bool = False

    @classmethod
    def read(cls, doc: str | None) -> Job:
        """From the command line of a runner."""
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
        parser.add_argument("--work", required=True, choices=WORKS)
        for name in ("users", "cohort", "rounds"):
            parser.add_argument(f"--{name}", required=True, type=int)
        parser.add_argument("--data", required=True, help="folder that work.write made")
        parser.add_argument("--out", required=True, help="JSON file; weights go beside it as .npz")
        parser.add_argument("--workers", type=int, default=2, help="processes that train (2)")
        parser.add_argument("--check", action="store_true", help="train in the orders that the data has")
        options, _ = parser.parse_known_args()  # runners may have more
        return cls(**vars(options))

    @classmethod
    def of_json(cls, text: str) -> Job:
        return cls(**json.loads(text))

    def json(self) -> str:
        return json.dumps(asdict(self))

    def flags(self) -> list[str]:
        """The command line that `read` reads."""
        values = asdict(self)
        check = ["--check"] if values.pop("check") else []
        return [part for name, value in values.items() for part in (f"--{name}", str(value))] + check

    @property
    def lr(self) -> float:
        work = WORKS[self.work]
        return work.check_lr if self.check else work.lr

    def cohorts(self) -> Iterator[list[int]]:
        """The users of each round; all of them in a checked job."""
        rng = np.random.default_rng(SEED)
        for _ in range(self.rounds):
            yield sorted(rng.choice(self.users, self.cohort, replace=False).tolist())


class Samples:
    """The samples of every user, and in which order one trains on them."""

    def __init__(self, job: Job) -> None:
        work, folder = WORKS[job.work], Path(job.data)
        self._n = work.samples
        # without the subclass memmap, whose every slice costs microseconds
        self._x = np.load(folder / "x.npy", mmap_mode="r").view(np.ndarray)
        self._y = np.load(folder / "y.npy")
        self._batches = np.load(folder / "batches.npy") if job.check else None
        self._rng = np.random.default_rng()

    def of(self, user: int, round_: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inputs (n, *shape) in [0, 1] and labels (n,), as they are cut into batches in a round (from 0)."""
        order = self._rng.permutation(self._n) if self._batches is None else self._batches[round_, user]
        order = order + user * self._n
        return np.multiply(self._x[order], SCALE, dtype=np.float32), self._y[order]


def write(name: str, users: int, rounds: int, folder: Path) -> None:
    """Write the files of a work, unless they are there.

    They are x, y, batches (rounds, users, n), weights, and the order and offsets that the simulator maps.
    rounds: those of a checked job; 0 for others.
    """
    if (folder / "weights.npz").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    work, rng = WORKS[name], np.random.default_rng([SEED, ord(name)])
    count = users * work.samples
    np.save(folder / "x.npy", rng.integers(0, 256, (count, *work.shape), np.uint8))
    np.save(folder / "y.npy", rng.integers(0, CLASSES, count))
    np.save(folder / "order.npy", np.arange(count))
    np.save(folder / "offsets.npy", np.arange(users + 1) * work.samples)
    orders = [[_order(r, u, work.samples) for u in range(users)] for r in range(rounds)]
    np.save(folder / "batches.npy", np.array(orders))
    np.savez(folder / "weights.npz", **_weights(work, rng))


def user_name(user: int, users: int = 1) -> str:
    """As our fleet of one group, "user", names its devices."""
    return f"user-{user:0{max(5, len(str(users - 1)))}d}"


def round_seed(round_: int) -> int:
    """Of round `round_`, from 0, of a task with seed SEED: see device_runtime.aggregator.tasks.task.Task."""
    digest = hashlib.sha256(f"{SEED}:{round_ + 1}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 11


def _order(round_: int, user: int, samples: int) -> NDArray[np.int64]:
    """As the device's own code shuffles: see `Run.rng` and `local_training`, in strategies.training."""
    digest = hashlib.sha256(f"{round_seed(round_)}:{user_name(user)}".encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    return rng.permutation(np.arange(samples))


def _weights(work: Work, rng: np.random.Generator) -> Arrays:
    """Uniform within 1 / sqrt(fan in), as torch starts its layers."""
    values, fan = {}, 1
    for name, shape in work.weights.items():
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else fan  # a bias has its weight's
        values[name] = rng.uniform(-(fan**-0.5), fan**-0.5, shape).astype(np.float32)
    return values


def weights(job: Job) -> Arrays:
    """Those that all start from."""
    with np.load(Path(job.data) / "weights.npz") as stored:
        return {name: stored[name] for name in WORKS[job.work].weights}


def report(job: Job, marks: list[float], final: Callable[[], Arrays], packages: tuple[str, ...]) -> None:
    """Writes what a runner found: `marks` are seconds at the start and after each round."""
    out = Path(job.out)
    result: dict[str, Any] = {
        "job": asdict(job),
        "seconds": np.diff(marks).tolist(),
        "versions": {"python": sys.version.split()[0], **{name: metadata.version(name) for name in packages}},
    }
    if job.check:
        np.savez(out.with_suffix(".npz"), **final())
    out.write_text(json.dumps(result))
