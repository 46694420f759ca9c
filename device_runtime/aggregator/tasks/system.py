"""What a system is: kinds of update with their settings and rounds, and what else it makes of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer
from device_runtime.strategies.registry import KINDS, alone

from .task import KindSettings, Start, Task

Settings = Mapping[str, Any]
Rounds = Callable[[int], int]
"""From a task's number of rounds to a number of rounds."""

TRAINING = ("epochs", "lr", "momentum", "weight_decay", "batch", "mu", "clip_norm", "codec")
"""Settings of full updates that hold for other kinds of local training of a whole model, if unsaid there."""
WHOLE = ("full+few-shot", "width-slice", "attention-transfer", "prototypes", "representatives")


@dataclass(frozen=True)
class Part:
    """One kind of a system. `usual` are settings that a task may change, `fixed` those that it may not.

    It is offered after the part `after` of the rounds, and until that number of rounds, which it is told
    where it asks for `rounds`.
    """

    kind: str
    fixed: Settings = field(default_factory=dict)
    usual: Settings = field(default_factory=dict)
    after: Rounds = lambda rounds: 0
    until: Rounds = lambda rounds: rounds

    def of(self, task: Task) -> KindSettings:
        """As this task offers it. Raises TaskError."""
        given = _given(task, self.kind)
        settings = {**self.usual, **_followed(task, self.kind), **given.settings, **self.fixed}
        if takes(self.kind, "members") and not settings.get("members"):
            settings["members"] = tuple(_name(path) for path in task.family)
        begin, until = self.after(task.rounds) + 1, self.until(task.rounds)
        if takes(self.kind, "rounds"):
            settings["rounds"] = until
        return KindSettings(
            name=self.kind,
            settings=settings,
            from_round=begin,
            until_round=until if until < task.rounds else None,
            weight=given.weight,
            max_norm=given.max_norm,
        )


@dataclass(frozen=True)
class System:
    """`says` in a line what it is, `source` where it is from. `rounds`: of one that is done in so many.
    `drawn` are the parts where only some devices take part in a round, if they are others.

    Parts that begin after a task's last round are left out.
    """

    says: str
    source: str
    parts: tuple[Part, ...]
    server: str = "fedavg"
    start: Start = "bundle"
    rounds: int | None = None
    untimed: Rounds = lambda rounds: 0
    drawn: tuple[Part, ...] = ()

    def of(self, task: Task) -> Task:
        """The task as this system does it. Raises TaskError."""
        rounds = task.rounds if self.rounds is None else self.rounds
        task = msgspec.structs.replace(task, rounds=rounds)
        parts = self.parts if task.devices_per_round is None else self.drawn or self.parts
        return msgspec.structs.replace(
            task,
            kinds=tuple(part.of(task) for part in parts if part.after(rounds) < rounds),
            server=server_of(task, self.server),
            start=self.start,
            head="trained" if task.head == "auto" else task.head,
            wait_for="all" if task.wait_for == "auto" else task.wait_for,
            untimed_rounds=max(task.untimed_rounds, self.untimed(rounds)),
        )


def server_of(task: Task, name: str) -> ServerOptimizer:
    """The task's own where it is of this name."""
    return task.server if task.server.name == name else msgspec.convert({"name": name}, ServerOptimizer)


def takes(kind: str, setting: str) -> bool:
    """Whether there is such a kind, and it has such a setting."""
    return kind in KINDS and setting in getattr(KINDS[kind], "__dataclass_fields__", {})


def _given(task: Task, name: str) -> KindSettings:
    given = next((kind for kind in task.kinds if kind.name == name), KindSettings(name=name))
    return msgspec.structs.replace(given, settings=alone(name, given.settings))


def _followed(task: Task, name: str) -> Settings:
    """What the task says of full updates, for kinds that train a whole model as they do."""
    if name not in WHOLE:
        return {}
    full = _given(task, "full").settings
    return {key: value for key, value in full.items() if key in TRAINING and takes(name, key)}


@lru_cache
def _name(path: str) -> str:
    """The name of a member, which its manifest says. Raises ModelError."""
    return Bundle.open(bundles.find(path)).manifest.name
