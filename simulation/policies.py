"""What rounds offer, by name: the same fleet and task under one policy or another."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aggregator.task import KindSettings, Task, kinds_named
from strategies.registry import KINDS

from .errors import ScenarioError

POLICIES = {
    "choose": "every device sends the richest kind of update that it can afford",
    "drop": "full updates only: stragglers are dropped",
    "reduced": "full updates, of one local epoch where all do not fit (FedAvg+)",
}
"""What each does; besides, the name of a kind stands for that kind alone, for every device, as published."""


def names() -> tuple[str, ...]:
    return (*POLICIES, *KINDS)


def under(policy: str, task: Task) -> Task:
    """The task with the kinds that this policy offers, their settings kept. Raises ScenarioError."""
    if policy == "choose":
        return task
    if policy not in names():
        raise ScenarioError(f"no policy named {policy!r}; there are {', '.join(names())}")
    if policy == "drop":
        return _offering(task, _of("full", task.kinds))
    if policy == "reduced":
        full = _of("full", task.kinds)
        settings = {**msgspec.to_builtins(full.strategy), "reduced_epochs": 1}
        return _offering(task, msgspec.structs.replace(full, settings=settings))
    return _offering(task, _alone(_of(policy, task.kinds)))


def _alone(kind: KindSettings) -> KindSettings:
    """Without the settings that it has in rounds with others: as published, and as `kinds_named` has it."""
    *_, beside = kinds_named(dict.fromkeys(("full", kind.name)))
    settings = {name: value for name, value in kind.settings.items() if beside.settings.get(name) != value}
    return msgspec.structs.replace(kind, settings=settings)


def _offering(task: Task, kind: KindSettings) -> Task:
    return msgspec.structs.replace(task, kinds=(msgspec.structs.replace(kind, from_round=1),))


def _of(name: str, kinds: Iterable[KindSettings]) -> KindSettings:
    return next((kind for kind in kinds if kind.name == name), KindSettings(name=name))
