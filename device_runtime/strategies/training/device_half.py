"""What a device's half of an update is given, and what it sends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.data.local_data import LocalData as LocalData

NOTHING: Tensors = MappingProxyType({})
MOST_LOSS = 1e6
"""No mean loss is above this: training has diverged."""


class OutOfTime(Exception):
    """The device's own clock says that this update cannot be finished before its deadline.

    `whole_s` is how many seconds all of the work would have taken, as far as is seen.
    """

    def __init__(self, text: str, whole_s: float) -> None:
        super().__init__(text)
        self.whole_s = whole_s


@dataclass(frozen=True)
class Run:
    """One device's work in one round. `seed` is the round's, shared by all; times are in seconds.

    `round` is the round's number, `rare` the labels that the offer says few samples are known of, fewest
    first. `memory` is what this kind kept on this device when it last trained in this run; `aside` what the
    aggregator sent for it beside the base. `noise` gives the randomness of private training, which nobody
    may repeat: the operating system's, but in a simulation. `clock` stands still while the work does; `lost`
    is how long it has, of what there was until the deadline.
    """

    seed: int
    device: str
    clock: Callable[[], float]
    deadline: float
    progress: Callable[[float], None] = field(default=lambda _: None)
    memory: Tensors = field(default_factory=lambda: NOTHING)
    aside: Tensors = field(default_factory=lambda: NOTHING)
    noise: Callable[[], np.random.Generator] = np.random.default_rng
    lost: Callable[[], float] = field(default=lambda: 0.0)
    round: int = 0
    rare: tuple[int, ...] = ()

    def rng(self) -> np.random.Generator:
        """The device's own randomness: the same for the same round seed and device name."""
        digest = hashlib.sha256(f"{self.seed}:{self.device}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))

    def drawn(self, most: int, samples: int) -> NDArray[np.int64] | None:
        """Indices of `most` of a device's samples, drawn evenly by `rng`; None: of all, there are no more."""
        return self.rng().permutation(samples)[:most] if most < samples else None

    def pace(self, began: float, done: float, of: float = 1.0) -> None:
        """Report `done`, the share of the work that is finished (0 to 1), that began at clock time `began`.

        Raises OutOfTime when the deadline has passed, or as soon as the rest is seen to miss it: a first
        tenth, which may have been slow to start, must miss it by three times. It tells of all that was
        planned, of which the work is the share `of`.
        """
        self.progress(done)
        elapsed = self.clock() - began
        projected = elapsed / done / (1.0 if done >= 0.1 else 3.0)
        whole = max(elapsed, projected)
        over = began + whole + self.lost() - self.deadline
        if done < 1 and over > 0:
            raise OutOfTime(f"{done:.0%} done, would end {over:.1f} s after the deadline", whole / of)


@dataclass(frozen=True)
class Late:
    """That an update was made for an earlier round: its number and seed, and the share of its change that
    counts in this one. `times`: how many rounds it stands for; `base` gives what that round distributed, {}
    where it is not known.
    """

    round: int
    seed: int
    share: float
    times: float = 1.0
    base: Callable[[], Tensors] = field(default=dict, compare=False, repr=False)


@dataclass(frozen=True)
class TrainedUpdate:
    """What a device sends back. `train_loss` is the mean over what it trained on; nan where nothing was.

    `form` is that of the strategy that made it, by which `fold` knows the member of the family. `memory` is
    not sent: the device keeps it for the next time that it trains this kind, in place of what it kept before
    (None: that stays). `device` and `late` are set on the aggregator; tensors of a late one that the base has
    were moved to this round's.
    """

    kind: str
    tensors: Tensors
    num_examples: int
    train_loss: float
    form: str = ""
    memory: Tensors | None = None
    late: Late | None = None
    device: str = ""
