"""Draws the devices of a round that asks only some: uniformly, or by an own drawing policy.

The aggregator and simulations draw by the same policies; docs/own-policy.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar

import numpy as np

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.plugins import Plugin, own_code

from .participants import DeviceTraits

UNIFORM = "uniform"


@dataclass(frozen=True)
class EarlierUpdates:
    """A device's updates that counted.

    rounds: the number of rounds in which it counted. last_round: the latest of them, 0 for none.
    train_loss, train_s: loss and seconds of training of the last one; nan where unknown.
    """

    rounds: int = 0
    last_round: int = 0
    train_loss: float = nan
    train_s: float = nan


NO_UPDATES = EarlierUpdates()


@dataclass(frozen=True)
class DrawCandidate:
    """A device that may be asked: what it says of itself, and its updates so far."""

    traits: DeviceTraits
    updates: EarlierUpdates = NO_UPDATES

    @property
    def name(self) -> str:
        return self.traits.name


class DrawingPolicy(Plugin, ABC):
    """How the devices of a round are drawn; a frozen dataclass. It keeps nothing between two draws."""

    registry: ClassVar[dict[str, Any]] = {}
    about: ClassVar[str] = "own drawing policy"

    @abstractmethod
    def draw(
        self, candidates: Sequence[DrawCandidate], count: int, number: int, rng: np.random.Generator
    ) -> Sequence[DrawCandidate]:
        """The devices to ask for round `number`: at most `count` of the candidates.

        candidates: devices that are ready and not at work, sorted by name; there is at least one.
        rng: the only randomness to use, so that a run can be repeated.
        Called again, with those that are left, if devices give up their place in the round.
        """


@dataclass(frozen=True)
class Uniform(DrawingPolicy):
    """Each device with the same probability: what tasks do by default."""

    name: ClassVar[str] = UNIFORM
    about: ClassVar[str] = "each device with the same probability"

    def draw(
        self, candidates: Sequence[DrawCandidate], count: int, number: int, rng: np.random.Generator
    ) -> Sequence[DrawCandidate]:
        chosen = rng.choice(len(candidates), size=min(count, len(candidates)), replace=False)
        return [candidates[i] for i in chosen]


DrawingPolicy.registry[UNIFORM] = Uniform


def drawing_named(name: str) -> DrawingPolicy:
    """The policy of this name. Raises ValueError, which names those that there are."""
    if name not in DrawingPolicy.registry:
        registry.load_plugins()
    if name not in DrawingPolicy.registry:
        names = ", ".join(DrawingPolicy.registry)
        own = "--plugin FILE.py:CLASS loads one of your own"
        raise ValueError(f"no drawing policy is called {name!r}; there are {names}; {own}")
    policy: DrawingPolicy = DrawingPolicy.registry[name]()
    return policy


class DrawingError(AggregatorError):
    """An own drawing policy drew what it must not."""


def drawn(
    policy: DrawingPolicy,
    candidates: Sequence[DrawCandidate],
    count: int,
    number: int,
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """The names of the devices that a policy draws.

    Raises DrawingError for too many, for one twice and for one that is no candidate, and OwnCodeError where
    an own policy fails.
    """
    if not candidates:
        return ()
    with own_code(type(policy)):
        devices = tuple(device.name for device in policy.draw(candidates, count, number, rng))
    if len(devices) > count or len(set(devices)) < len(devices):
        raise DrawingError(
            f"{policy.name} drew {len(devices)} devices for round {number}, {len(set(devices))} different; "
            f"expected {count} different ones at most"
        )
    if strangers := set(devices) - {device.name for device in candidates}:
        raise DrawingError(f"{policy.name} drew {min(strangers)} for round {number}, which is no candidate")
    return devices
