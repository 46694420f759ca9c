"""Inputs and outputs of the device's half of a kind of update."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import NO_TENSORS as NO_TENSORS
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.bundles.weights import generator_of
from device_runtime.models.data.local_data import LocalData as LocalData

MOST_LOSS = 1e6
"""The largest mean loss that is accepted; above it, training has diverged."""
FEW_SHOT = "few-shot/"
"""Prefix of the names of a few-shot trained classifier's tensors, beside those of the model."""


class OutOfTime(Exception):
    """Raised when the device's own clock shows that an update cannot be finished before its deadline.

    `whole_s` estimates how many seconds all of the work would have taken.
    """

    def __init__(self, text: str, whole_s: float) -> None:
        super().__init__(text)
        self.whole_s = whole_s


@dataclass(frozen=True)
class Run:
    """The context of one device's work in one round; times are in seconds.

    seed: the round's, shared by all devices.
    round: the round's number.
    rare: labels of which the aggregator knows few samples, as the offer says, the rarest first.
    memory: what this kind kept on this device when it last trained in this run.
    aside: tensors that the aggregator sent for this kind with the base.
    noise: gives the randomness of private training, which must not be repeatable: the operating system's,
    except in a simulation.
    clock: stops while the work is paused.
    upload_at: when, on that clock, the update must be ready to be sent.
    pause_s: gives how long the work has been paused, out of the time until `upload_at`.
    """

    seed: int
    device: str
    clock: Callable[[], float]
    upload_at: float
    progress: Callable[[float], None] = field(default=lambda _: None)
    memory: Tensors = field(default_factory=lambda: NO_TENSORS)
    aside: Tensors = field(default_factory=lambda: NO_TENSORS)
    noise: Callable[[], np.random.Generator] = np.random.default_rng
    pause_s: Callable[[], float] = field(default=lambda: 0.0)
    round: int = 0
    rare: tuple[int, ...] = ()

    @property
    def deadline(self) -> float:
        warnings.warn("Run.deadline is called Run.upload_at now", DeprecationWarning, stacklevel=2)
        return self.upload_at

    def rng(self) -> np.random.Generator:
        """The device's own randomness: the same for the same round seed and device name."""
        return generator_of(f"{self.seed}:{self.device}")

    def drawn(self, most: int, samples: int) -> NDArray[np.int64] | None:
        """Indices of `most` of a device's `samples`, drawn evenly by `rng`; None: all, there are no more."""
        return self.rng().permutation(samples)[:most] if most < samples else None

    def pace(self, began: float, done: float, of: float = 1.0) -> None:
        """Report the share `done` (0 to 1) of work that began at clock time `began`.

        Raises OutOfTime when the deadline has passed, or as soon as the rest is projected to miss it. During
        the first tenth, which may have been slow to start, the projection is divided by three. This work is
        the share `of` of all that was planned; the error's `whole_s` is for all.
        """
        self.progress(done)
        elapsed = self.clock() - began
        projected = elapsed / done / (1.0 if done >= 0.1 else 3.0)
        whole = max(elapsed, projected)
        over = began + whole + self.pause_s() - self.upload_at
        if done < 1 and over > 0:
            raise OutOfTime(f"{done:.0%} done, would end {over:.1f} s after the deadline", whole / of)


@dataclass(frozen=True)
class Late:
    """Marks an update that was made for an earlier round, with that round's number and seed.

    share: the part of its change that counts in this round.
    times: the number of rounds that it counts for.
    base: gives the weights that its round distributed; {} if they are not known.
    """

    round: int
    seed: int
    share: float
    times: float = 1.0
    base: Callable[[], Tensors] = field(default=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Update:
    """A contribution, as a device's half returns it and the aggregator's half folds it.

    train_loss: the mean over the samples trained on; nan if there was no training.
    variant: the `Strategy.variant` that made it, by which `fold` knows the member of the family.
    memory: not sent; the device keeps it for the next time that it trains this kind, in place of what it kept
    before (None: that stays).
    device, late: set on the aggregator; tensors of a late update that the base has are rebased onto this
    round's base.
    """

    kind: str
    tensors: Tensors
    num_examples: int
    train_loss: float
    variant: str = ""
    memory: Tensors | None = None
    late: Late | None = None
    device: str = ""


def few_shot_head(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """The few-shot trained classifier among tensors, by the model's own names; empty if there is none."""
    head = {name: value for name, value in tensors.items() if name.startswith(FEW_SHOT)}
    return {name.removeprefix(FEW_SHOT): value for name, value in head.items()}
