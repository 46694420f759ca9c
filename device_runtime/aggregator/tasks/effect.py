"""Finds settings of a task that differ from their defaults and change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.merging.server_optimizer import DEFAULT_LR, ServerOptimizer

from .family import unused_reason
from .task import NEEDS, Task

_OF_RULES = {
    "robust_trim": ("trimmed-mean",),
    "robust_clip": ("norm-clip", "value-clip"),
    "robust_clip_factor": ("norm-clip", "value-clip"),
    "robust_byzantine": ("krum", "multi-krum"),
}
"""Numbers of robust rules, and the rules that look at them."""
_OF_SERVERS = {
    "momentum": ("fedavgm",),
    "beta1": ("fedadam", "fedyogi"),
    "beta2": ("fedadam", "fedyogi"),
    "tau": ("fedadagrad", "fedadam", "fedyogi"),
}
"""Numbers of server optimisers, and the optimisers that look at them."""
_NEEDED = {
    "ask_all_rounds": "devices_per_round",
    **{name: needed for needed, names in NEEDS.items() if needed != "robust" for name in names},
}
"""Settings, and the one without which each has no effect."""
_DEFAULTS = Task(bundle="-")
_SERVER = ServerOptimizer()


def without_effect(task: Task, manifest: Manifest) -> tuple[str, ...]:
    """A sentence for each setting that a person has changed and that changes nothing in this task."""
    return tuple(_sentences(task, manifest))


def _sentences(task: Task, manifest: Manifest) -> Iterator[str]:
    for name, needed in _NEEDED.items():
        if _changed(task, name) and not getattr(task, needed):
            yield f"{name} has no effect without {needed}"
    for name, rules in _OF_RULES.items():
        if _changed(task, name) and task.robust not in rules:
            yield f"{name} has no effect: it is of {' or '.join(rules)}, and robust is {task.robust}"
    server = task.server
    for name, names in _OF_SERVERS.items():
        shipped = server.name in DEFAULT_LR
        if shipped and getattr(server, name) != getattr(_SERVER, name) and server.name not in names:
            yield f"server.{name} has no effect: it is of {' or '.join(names)}, and server is {server.name}"
    yield from _of_late_updates(task)
    yield from _of_classes(task, manifest)
    for kind in task.kinds:
        if kind.from_round > task.rounds:
            yield f"{kind.name} is never offered: from_round is {kind.from_round}, of {task.rounds} rounds"
    if why := unused_reason(task):
        yield why
    if task.generic is not None and not uses_generic([kind.strategy for kind in task.kinds]):
        yield f"generic has no effect: {NO_GENERIC}"


NO_GENERIC = "no kind of update that is offered trains on the aggregator"


def uses_generic(strategies: list[AnyStrategy]) -> bool:
    """Whether one of the kinds needs samples that belong to no device."""
    return any(strategy.traits.generic for strategy in strategies)


def _of_late_updates(task: Task) -> Iterator[str]:
    if task.counts_late:
        return
    for name in ("max_staleness", "staleness_weight"):
        if _changed(task, name):
            yield f'{name} has no effect: late updates do not count (late = "count", buffer_size)'


def _of_classes(task: Task, manifest: Manifest) -> Iterator[str]:
    """Settings of heads in closed form, which are of classes."""
    if manifest.target.compared != "classes" or not manifest.target.is_cross_entropy:
        why = f"the bundle's loss is {manifest.target.description}, not cross-entropy over classes"
        if task.head == "closed-form":
            yield f"head = closed-form has no effect: {why}"
    elif not task.closed_form:
        why = "the trained head is served, without class statistics"
    else:
        return
    if _changed(task, "statistics"):
        yield f"statistics has no effect: {why}"


def _changed(task: Task, name: str) -> bool:
    return bool(getattr(task, name) != getattr(_DEFAULTS, name))
