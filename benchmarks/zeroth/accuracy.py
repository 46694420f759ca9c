"""Accuracy against rounds, forward passes and bytes: zeroth-order rounds and what they are held against.

    .venv/bin/python benchmarks/zeroth_order.py accuracy --out DIR                       # heads of CIFAR-10
    .venv/bin/python benchmarks/zeroth_order.py accuracy --out DIR --data speech
    .venv/bin/python benchmarks/zeroth_order.py accuracy --out DIR --subset bias --rounds 100
    .venv/bin/python benchmarks/zeroth_order.py accuracy --out DIR --methods ours:lr=0.1,sampled=0.1 fedmezo
    .venv/bin/python benchmarks/zeroth_order.py accuracy --out DIR --show            # what is there already

A cell is one run: data, subset, partition, clients, participation, method, seed. Each is a file in DIR, and
is not run again. A method is fedmezo (the thesis), ours, distmezo-naive or first-order (FedAvg of the same
subset), with settings of its kind behind a colon; "ncm+" before it makes the first round one of class means,
"ncm10+" the first ten, of which each adds to the sums of those before; "scaled-" before that takes a bundle
whose features have a scale, which class means set (heads alone).
Passes are forward passes of a sample, for all samples of the fleet: 1 is one pass over everybody's data.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

from device_runtime.simulation.executors.job import PlainExecutor
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds.registry import KINDS
from device_runtime.strategies.kinds.zeroth_order import FEDMEZO, MEASURED

from . import shown
from .liars import ALIKE
from .on_features import OnFeatures
from .pretrained import subject

METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fedmezo": ("zeroth-order", FEDMEZO),
    "ours": ("zeroth-order", MEASURED),
    "distmezo-naive": ("local-zeroth-order", {}),
    "first-order": ("peft", {"tunables": ()}),
}
NCM = re.compile(r"(?P<scaled>scaled-)?ncm(?P<rounds>\d*)\+")
POINTS = 20
"""Evaluations of a run, about."""


@dataclass(frozen=True)
class Cell:
    """The settings of a run.

    alpha: that of the Dirichlet partition; 0 for equal shares. share: of the clients that take part in a
    round. samples: the number of training samples; 0 for all.
    """

    data: str
    subset: str
    size: int
    alpha: float
    clients: int
    share: float
    samples: int
    method: str
    rounds: int
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        where = (self.data, self.subset, self.size, f"a{self.alpha:g}", f"k{self.clients}")
        how = (f"p{self.share:g}", f"n{self.samples}", self.method, self.rounds, self.seed)
        return "-".join(map(str, (*where, *how))).replace(":", "@").replace("/", "_")

    @property
    def partition(self) -> str:
        return f"Dirichlet {self.alpha:g}" if self.alpha else "iid"

    @property
    def bundle(self) -> str:
        """Which one of `pretrained.subject`."""
        means = NCM.match(self.method)
        return f"scaled-{self.subset}" if means is not None and means["scaled"] else self.subset

    @property
    def kinds(self) -> list[dict[str, Any]]:
        """As a task has them. Raises ValueError for a method that there is not."""
        means = NCM.match(self.method)
        named, _, text = self.method[means.end() if means else 0 :].partition(":")
        if named not in METHODS:
            raise ValueError(f"no method is called {named!r}; there are {', '.join(METHODS)}")
        kind, settings = METHODS[named]
        own = dict(pair.split("=") for pair in text.split(",") if pair)
        typed = {name: _typed(KINDS[kind], name, value) for name, value in own.items()}
        trained = {"name": kind, "settings": {"tunable": self.subset, **settings, **typed}}
        if means is None:
            return [trained]
        first = int(means["rounds"] or 1)
        gathered = {"name": "class-means", "settings": {"gathered": first > 1}, "until_round": first}
        return [gathered, {**trained, "from_round": first + 1}]


def _typed(kind: Any, name: str, value: str) -> Any:
    """A setting as its kind's default has it."""
    return type(getattr(kind(), name))(value)


@dataclass
class Curve(NullObserver):
    """What was reached by when, at each evaluation: passes and bytes are of all rounds so far."""

    samples: int
    clients: int
    points: list[dict[str, float]] = field(default_factory=list)
    _spent: dict[str, float] = field(default_factory=lambda: {"passes": 0.0, "up": 0.0, "down": 0.0})

    def closed(self, line: SimulatedRound) -> None:
        spent = {
            "passes": line.forward_passes / self.samples,
            "up": line.bytes_up / self.clients,
            "down": line.bytes_down / self.clients,
        }
        self._spent = {name: self._spent[name] + value for name, value in spent.items()}
        if not isnan(line.eval_acc):
            reached = {"round": line.round, "accuracy": line.eval_acc, "loss": line.eval_loss}
            self.points.append({**reached, **self._spent})


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """It and its points, as they are kept."""
    of = subject(cell.data, cell.bundle, folder / "made", cell.size)
    table = {
        "fleet": ALIKE,
        "devices": cell.clients,
        "eval_every": max(1, cell.rounds // POINTS),
        "data": {
            **of.data,
            **({"max_train": cell.samples} if cell.samples else {}),
            **({"partition": "dirichlet", "alpha": cell.alpha} if cell.alpha else {"partition": "iid"}),
        },
        "task": {
            "bundle": str(of.bundle.resolve()),
            "rounds": cell.rounds,
            "round_deadline_s": 1e6,
            "kinds": cell.kinds,
            **({"devices_per_round": round(cell.share * cell.clients)} if cell.share < 1 else {}),
        },
    }
    prepared = prepare(scenario.load("uniform", table), cell.seed)
    curve = Curve(len(prepared.inputs.clients.y), cell.clients)
    simulate(prepared, OnFeatures if cell.subset == "head" else PlainExecutor, curve)
    return {"cell": asdict(cell), "points": curve.points}


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    axes = (args.alphas, args.clients, args.shares, args.methods, range(args.seeds))
    for alpha, clients, share, method, seed in product(*axes):
        whole = (args.data, args.subset, args.size, alpha, clients, share, args.samples, method)
        yield Cell(*whole, args.rounds, seed)


def read(folder: Path) -> list[dict[str, Any]]:
    """Every cell that is done."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the cells, and of what is made for them")
    add("--data", choices=("cifar10", "speech"), default="cifar10")
    add("--subset", choices=("head", "bias"), default="head", help="bias: of the whole network, CIFAR-10")
    add("--size", type=int, default=32, help="pixels of a side, with bias (default: 32)")
    add("--samples", type=int, default=0, help="of the training samples (default: all)")
    add("--alphas", type=float, nargs="+", default=[0, 0.1], help="of Dirichlet partitions; 0: equal shares")
    add("--clients", type=int, nargs="+", default=[10])
    add("--shares", type=float, nargs="+", default=[1.0], help="of the clients, that take part in a round")
    add("--methods", nargs="+", default=["fedmezo", "ncm+fedmezo", "ncm+ours", "ncm+first-order"])
    add("--rounds", type=int, default=200, help="of each run (default: 200)")
    add("--seeds", type=int, default=1, help="runs of each cell (default: 1)")
    add(
        "--show",
        action="store_true",
        help="run nothing: table and plot of what is done",
    )


def run(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    for cell in () if args.show else cells(args):
        path = args.out / f"{cell.name}.json"
        if not path.exists():
            result = run_cell(cell, args.out)
            path.write_text(json.dumps(result))
            print(cell.name, f"{result['points'][-1]['accuracy']:.3f}", flush=True)
    done = [shown.Done(Cell(**entry["cell"]), entry["points"]) for entry in read(args.out)]
    print(shown.ends(done))
    if args.show and done:
        print(f"\n{shown.goals(done)}")
        shown.plot(done, args.out / "accuracy.png")
