"""Checks that a task's bundle has what its kinds of update need; finds settings that change nothing.

Without the check, devices would sit out and no error would say why. It also finds the members of the
task's family that each kind trains.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.errors import ModelError
from device_runtime.profiles import shipped
from device_runtime.profiles.cost import MissingGraph
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import Comparable, DerivesMembers, NeedsModels
from device_runtime.strategies.interface.kind import AnyStrategy, inapplicable_reason
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.registry import KINDS
from device_runtime.strategies.merging.server_optimizer import DEFAULT_LR, ServerOptimizer
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.statistics import class_statistics
from device_runtime.strategies.training.workload import workload

from .kind_settings import KindSettings
from .known_systems import has_setting
from .task import NEEDS, Task

log = logging.getLogger(__name__)

MEMBERS = "members"
MAIN = ""
HOLD_OUT = 0.1
"""The share of devices' samples that are held out where nothing else measures the model."""


def trained_parts(task: Task, main: Bundle) -> dict[str, Bundle]:
    """The narrower parts in the task's bundle by name; none if no kind that it offers trains parts."""
    parts, names = main.parts(), tuple(kind.name for kind in task.kinds)
    if task.order == "default":
        names = registry.offered_kinds(main.manifest.target, parts)
    return parts if any(issubclass(registry.kind(name), DerivesMembers) for name in names) else {}


def with_members(task: Task, names: tuple[str, ...]) -> Task:
    """The task, with the members of its family in each kind that trains them.

    names: those of the bundles in `task.family`, in its order, or of the main bundle's parts without a
    family. A kind without `members` gets all of them, parts only if it trains parts. In `members` a model is
    called by its name, its path as in `family`, or its file's name. A task that names no kinds offers those
    that train parts only where there are some, as listed then, and else by gain. Raises TaskError for a
    member that is not in the family.
    """
    if task.order == "default":
        task = _with_default_kinds(task, bool(names))
    if not names:
        return task
    spellings = _spellings(task, names)
    kinds = tuple(
        _with_members(kind, names, spellings)
        if task.family or isinstance(kind.strategy, DerivesMembers)
        else kind
        for kind in task.kinds
    )
    return msgspec.structs.replace(task, kinds=kinds)


def _with_default_kinds(task: Task, parts: bool) -> Task:
    """The task with the kinds and the order that it has for a bundle with or without narrower parts."""
    if parts:
        return msgspec.structs.replace(task, order="listed")
    kinds = tuple(kind for kind in task.kinds if kind.name in registry.DEFAULT_KINDS)
    return msgspec.structs.replace(task, kinds=kinds, order="gain")


def unused_reason(task: Task) -> str:
    """Why the task's family has no effect; empty if it has one, or there is none."""
    if not task.family or any(has_setting(kind.name, MEMBERS) for kind in task.kinds):
        return ""
    trains = ", ".join(sorted(name for name in KINDS if has_setting(name, MEMBERS)))
    return f"family has no effect: of the kinds of update only {trains} train smaller models"


def members_called(
    members: tuple[str, ...], task: Task, names: tuple[str, ...], where: str
) -> tuple[str, ...]:
    """The names of the bundles that these spellings mean. Raises TaskError, naming `where`."""
    return _resolved(members, names, _spellings(task, names), where)


def _with_members(kind: KindSettings, names: tuple[str, ...], spellings: Mapping[str, str]) -> KindSettings:
    if not has_setting(kind.name, MEMBERS):
        return kind
    setting = tuple(kind.settings.get(MEMBERS) or ())
    members = _resolved(setting, names, spellings, f"{MEMBERS} of {kind.name}") if setting else names
    if members == setting:
        return kind
    return msgspec.structs.replace(kind, settings={**kind.settings, MEMBERS: members})


def _resolved(
    members: tuple[str, ...], names: tuple[str, ...], spellings: Mapping[str, str], where: str
) -> tuple[str, ...]:
    for member in members:
        if member != MAIN and member not in spellings:
            raise TaskError(f"{where}: no {member!r} in the task's family, which has {', '.join(names)}")
    return tuple(spellings.get(member, member) for member in members)


def _spellings(task: Task, names: tuple[str, ...]) -> dict[str, str]:
    """The bundle that each spelling means; a spelling that fits two bundles is left out."""
    names_by_spelling: dict[str, str] = {}
    several: set[str] = set()
    for path, name in zip(task.family or names, names, strict=True):
        for spelling in {path, PurePath(path).name, PurePath(path).stem, name}:
            if names_by_spelling.setdefault(spelling, name) != name:
                several.add(spelling)
    return {spelling: name for spelling, name in names_by_spelling.items() if spelling not in several} | {
        name: name for name in names
    }


ALONE: Mapping[str, Manifest] = MappingProxyType({})
ANY_DEVICE = "pi-5"
"""The device that costs are predicted for; which graphs a kind needs does not depend on it."""


def check_kinds(task: Task, manifest: Manifest, family: Mapping[str, Manifest] = ALONE) -> None:
    """Logs each kind of update that no device can do with this bundle and family.

    `family`: manifests by name. Raises TaskError where round 1 offers no other kind, and for a kind that
    lacks a generic set, narrower models, or graphs on the aggregator.
    """
    if task.closed_form and class_statistics.infeasible_reason(manifest, task.statistics):
        task = msgspec.structs.replace(task, head="trained")
    fitting = [kind for kind in task.kinds if not inapplicable_reason(kind.strategy, manifest)]
    for kind in fitting:
        if task.robust != "none" and (why := _incomparable(kind.strategy, manifest)):
            raise TaskError(f"robust is {task.robust}, and {kind.name} {why}")
        if kind.strategy.traits.generic and task.generic is None:
            raise TaskError(
                f"{kind.name} needs a generic data set: give the task generic = FILE.npz (serve --generic)"
            )
    manifests = {"": manifest, **family}
    for kind in fitting:
        if isinstance(kind.strategy, NeedsModels):
            try:
                kind.strategy.check_bundles(manifests)
            except (ModelError, KeyError) as error:
                raise TaskError(f"{kind.name} cannot be merged: {error}") from None
    lacking = {kind.name: _lacking(kind.strategy, manifests) for kind in task.kinds}
    texts = {name: f"{name} {lack}" for name, lack in lacking.items() if lack}
    first = [kind.name for kind in task.offered(1)]
    if all(name in texts for name in first):
        raise TaskError(f"no device can do what round 1 offers: {'; '.join(texts[name] for name in first)}")
    for text in texts.values():
        log.warning("no device can do this kind: %s", text)


def with_possible_head(task: Task, manifest: Manifest) -> Task:
    """The task, with the trained head where the bundle cannot have a closed-form one; logs that."""
    if not task.closed_form or not (why := class_statistics.infeasible_reason(manifest, task.statistics)):
        return task
    level = logging.INFO if task.head == "auto" else logging.WARNING
    log.log(level, "bundle %s is served with its trained head: %s", manifest.name, why)
    return msgspec.structs.replace(task, head="trained")


def with_test_samples(task: Task) -> Task:
    """The task, with a share of devices' samples held out; for a run that was begun without other data."""
    if not task.closed_form or task.statistics.hold_out is not None:
        return task
    return msgspec.structs.replace(task, statistics=replace(task.statistics, hold_out=HOLD_OUT))


def _incomparable(strategy: AnyStrategy, manifest: Manifest) -> str:
    """Why robust rules cannot compare the updates of a kind; empty if they can."""
    if capabilities.compared_as(strategy) is None:
        return "does not say how its updates are compared"
    own = isinstance(strategy, Comparable) and type(strategy).comparable is not Comparable.comparable
    if own or registry.is_shipped(type(strategy)):
        return ""
    stored = {spec.name for spec in manifest.stored()}
    other = next((spec.name for spec in strategy.expected(manifest) if spec.name not in stored), "")
    return f"sends {other!r}, which is no tensor of the base, and has no `comparable`" if other else ""


def _lacking(strategy: AnyStrategy, manifests: Mapping[str, Manifest]) -> str:
    """What the bundles lack for a kind; empty if at least one form of it is feasible."""
    with own_code(type(strategy)):
        missing, forms = inapplicable_reason(strategy, manifests[""]), strategy.variants()
    if missing:
        return missing
    for form in forms:
        manifest = manifests.get(form.member)
        if manifest is None:
            missing = f"needs a model {form.member!r} in the task's family"
            continue
        try:
            with own_code(type(form)):
                form.cost(workload(manifest, (1,) * len(manifest.labels)), shipped(ANY_DEVICE))
                if not registry.is_shipped(type(form)):
                    form.expected(manifest)
        except MissingGraph as error:
            missing = f"{error}: export it with {error.options}"
            continue
        return ""
    return missing


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
    "tau": ("fedadagrad", "fedadam", "fedyogi", "fedexp"),
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
    """Settings of heads in closed form."""
    if manifest.target.own:
        why = f"the bundle's loss is {manifest.target.description}, which only its graphs know"
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
