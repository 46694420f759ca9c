"""The demo's eight devices, which digits they hold, and what its rounds offer them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.task import KindSettings
from device_runtime.simulation import partition
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.digits import Split
from device_runtime.strategies import registry
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.entropy_subset import EntropySubset
from device_runtime.strategies.few_shot import FewShot
from device_runtime.strategies.full import Full
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.zeroth_order import ZerothOrder

SLOW = 20.0
"""Every board is slowed this much further: a digit weighs 1.6 MFLOP a pass, WRN-16-1 on CIFAR-10 about 50,
and a full update there has 6 times the samples. So the digits weigh on the boards as a real task would."""
DEADLINE_S = 3.5
EPOCHS = 5
SAMPLES = 180
"""Of a device, on average."""


@dataclass(frozen=True)
class DemoDevice:
    """A device of the fleet: its name, the shipped profile it pretends to be, its uplink if it is narrow, and
    the digits of which it has every sample; without any it shares those that are nobody's alone.

    Without a profile it is of the browser's modules, in Node, and as fast as it is here.
    """

    name: str
    profile: str = ""
    uplink: float | None = None
    digits: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """What it is, for tables and plots."""
        return self.profile or "JavaScript"


FLEET = (
    DemoDevice("phone-a", "phone-high"),
    DemoDevice("phone-b", "phone-high"),
    DemoDevice("board-a", "pi-5"),
    DemoDevice("board-b", "pi-5"),
    DemoDevice("phone-c", "phone-mid"),
    DemoDevice("jetson", "jetson-nano", digits=(6,)),
    DemoDevice("buoy", "jetson-nano", uplink=300.0, digits=(7,)),
    DemoDevice("pi-zero", "pi-zero-2w", digits=(8, 9)),
)
"""Two strong, three middling, three that a plain round would drop: too slow for a full update (jetson,
pi-zero), too slow and behind a satellite modem of 300 bytes per second (buoy). These three hold digits that
nobody else has."""


def beside(javascript: int) -> tuple[DemoDevice, ...]:
    """The eight, and so many in JavaScript."""
    return FLEET + tuple(DemoDevice(f"javascript-{number}") for number in range(1, javascript + 1))


@dataclass(frozen=True)
class Holders:
    """Digits that devices hold together, and what these are called."""

    name: str
    digits: tuple[int, ...]
    members: tuple[str, ...]


def holders(fleet: tuple[DemoDevice, ...]) -> tuple[Holders, ...]:
    """Who holds which digits: first those who share, then each that has digits alone."""
    alone = [Holders(one.name, one.digits, (one.name,)) for one in fleet if one.digits]
    own = {digit for one in alone for digit in one.digits}
    others = tuple(one.name for one in fleet if not one.digits)
    shared = tuple(digit for digit in range(10) if digit not in own)
    return (Holders(f"the {len(others)} fast", shared, others), *alone)


def offered(strategy: AnyStrategy, from_round: int = 1) -> KindSettings:
    """A kind with all of its hyperparameters, for the offer of every round from `from_round` on."""
    return KindSettings(name=strategy.name, settings=registry.settings(strategy), from_round=from_round)


MIXED = (
    offered(Full(epochs=EPOCHS, batch=32)),
    offered(EntropySubset(shares=(0.5, 0.25, 0.1), epochs=EPOCHS, batch=32)),
    offered(FewShot(), from_round=2),
    offered(ClassMeans(head="trained")),
    offered(ZerothOrder(lr=1e-3)),
)
"""Few-shot heads are offered from round 2 on, as in FedFSC, and stay out of the base: the served head is made
of class statistics."""
DROPPED = MIXED[:1]
"""A plain federated round: whoever cannot send a full update in time is dropped."""


# FROM samples: Which samples each of the demo's devices holds: the slow ones every sample of digits of
# their own.

ALPHA = 0.3


def divided(
    y: NDArray[np.int64], fleet: tuple[DemoDevice, ...], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Indices into the training samples for each member, sorted: all of its own digits, or a part of those
    that are nobody's alone, by Dirichlet(ALPHA) in equal numbers.
    """
    shared, *_ = holders(fleet)
    common = np.flatnonzero(np.isin(y, shared.digits))
    dealt = iter(partition.dirichlet(y[common], len(shared.members), ALPHA, rng))
    return [np.flatnonzero(np.isin(y, one.digits)) if one.digits else common[next(dealt)] for one in fleet]


def data_set(split: Split) -> DataSet:
    """The same samples as the simulator takes them."""
    labels = tuple(str(digit) for digit in range(10))
    return DataSet(split.train.x, split.train.y, split.test.x, split.test.y, labels)
