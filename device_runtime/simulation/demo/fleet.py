"""The demo's eight devices, the samples that each holds, and the kinds that its rounds offer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.simulation import partition
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.digits import Split
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.entropy_subset import EntropySubset
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.kinds.width_slice import WidthSlice
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

SLOW = 20.0
"""The factor by which every board is slower than real.

A digit takes 1.6 MFLOP a pass, WRN-16-1 on CIFAR-10 about 50, and a full update there has 6 times the
samples. With this factor the digits load the boards as a real task would.
"""
DEADLINE_S = 3.5
EPOCHS = 5
SAMPLES = 180
"""Samples of a device, on average."""


@dataclass(frozen=True)
class DemoDevice:
    """A device of the demo's fleet.

    profile: the shipped profile that it emulates; without a profile it runs the browser's modules in Node, at
    the speed of this machine.
    uplink, downlink: in bytes per second, if the link is narrow.
    smallest_count: the owner's rule, if any: nothing may be sent of classes with fewer samples.
    digits: the digits of which it has every sample; a device without any shares the digits that no device has
    alone.
    """

    name: str
    profile: str = ""
    uplink: float | None = None
    downlink: float | None = None
    smallest_count: int | None = None
    digits: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The profile or JavaScript, for tables and plots."""
        return self.profile or "JavaScript"

    @property
    def limits(self) -> str:
        """What narrows its choice beside the board, in words."""
        rates = [
            f"{rate / 1000:g} kB/s {way}" if rate >= 1000 else f"{rate:g} B/s {way}"
            for rate, way in ((self.uplink, "up"), (self.downlink, "down"))
            if rate
        ]
        rule = f"owner: no class of fewer than {self.smallest_count} samples" if self.smallest_count else ""
        return "; ".join(filter(None, (", ".join(rates), rule)))


FLEET = (
    DemoDevice("phone-a", "phone-high"),
    DemoDevice("phone-b", "phone-high"),
    DemoDevice("board", "pi-5"),
    DemoDevice("tracker", "phone-mid", uplink=140e3, downlink=140e3),
    DemoDevice("station", "pi-5", uplink=300.0, smallest_count=200),
    DemoDevice("jetson", "jetson-nano", digits=(6,)),
    DemoDevice("buoy", "jetson-nano", uplink=300.0, digits=(5, 7)),
    DemoDevice("pi-zero", "pi-zero-2w", digits=(8, 9)),
)
"""Three fast devices, and five stragglers, of which three hold digits that no other device has.

The stragglers are too slow for a full update (jetson, pi-zero), have a link too slow for the whole network
(tracker), or a satellite modem of 300 bytes per second (station, buoy). The owner of the station lets nothing
be sent by class.
"""


def with_javascript(javascript: int) -> tuple[DemoDevice, ...]:
    """The fleet of eight, with this many devices in JavaScript added."""
    return FLEET + tuple(DemoDevice(f"javascript-{number}") for number in range(1, javascript + 1))


@dataclass(frozen=True)
class Holders:
    """Digits and the devices that hold them, with a name for these devices."""

    name: str
    digits: tuple[int, ...]
    members: tuple[str, ...]


def holders(fleet: tuple[DemoDevice, ...]) -> tuple[Holders, ...]:
    """The holders of all digits: first the devices that share digits, then each that has digits alone."""
    alone = [Holders(device.name, device.digits, (device.name,)) for device in fleet if device.digits]
    own = {digit for holder in alone for digit in holder.digits}
    others = tuple(device.name for device in fleet if not device.digits)
    shared = tuple(digit for digit in range(10) if digit not in own)
    return (Holders(f"the {len(others)} others", shared, others), *alone)


def offered(strategy: AnyStrategy, from_round: int = 1) -> KindSettings:
    """A kind with all of its hyperparameters, for the offer of every round from `from_round` on."""
    return KindSettings(name=strategy.name, settings=registry.settings(strategy), from_round=from_round)


MIXED = (
    offered(FedAvg(epochs=EPOCHS, batch=32)),
    offered(EntropySubset(shares=(0.5, 0.25, 0.1), epochs=EPOCHS, batch=32)),
    offered(WidthSlice(epochs=EPOCHS, batch=32)),
    offered(FewShot(), from_round=2),
    offered(ClassMeans(head="trained")),
    offered(ZerothOrder(lr=1e-3)),
)
"""All kinds of the default offers, for every device.

Few-shot heads are offered from round 2 on, as in FedFSC, and are not merged into the base: the served head is
made of class statistics.
"""
DROPPED = MIXED[:1]
"""Full updates only, as in a plain federated round: stragglers are dropped."""


ALPHA = 0.3
"""Concentration of the Dirichlet division of the shared digits."""


def divide_digits(
    y: NDArray[np.int64], fleet: tuple[DemoDevice, ...], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Sorted indices into the training samples for each device.

    A device with digits of its own gets every sample of them. The others share the rest by Dirichlet(ALPHA),
    in equal numbers.
    """
    shared, *_ = holders(fleet)
    common = np.flatnonzero(np.isin(y, shared.digits))
    dealt = iter(partition.dirichlet(y[common], len(shared.members), ALPHA, rng))
    return [np.flatnonzero(np.isin(y, d.digits)) if d.digits else common[next(dealt)] for d in fleet]


def data_set(split: Split) -> DataSet:
    """The samples as a data set of the simulator."""
    labels = tuple(str(digit) for digit in range(10))
    return DataSet(split.train.x, split.train.y, split.test.x, split.test.y, labels)
