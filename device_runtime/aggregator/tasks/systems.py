"""Runs a task as a named system (of a paper, ours, one kind alone), and with settings for all its kinds.

Modifiers may follow the name, as in "fedpeft-bias+dp", "fedncm+ft+fedadam", "moon+". A task's settings of
a kind override the paper's default values, but not the values that define the system.

Learning rate, local epochs, batch size and codec can be set for all kinds that have them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.strategies.codecs import chain as codecs
from device_runtime.strategies.codecs.codec import CodecError
from device_runtime.strategies.interface.capabilities import Codec
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.settings import BatchSize, LearningRate, LocalEpochs, Setting

from .kind_settings import KindSettings
from .known_systems import (
    AS_PUBLISHED,
    SYSTEMS,
    Settings,
    System,
    SystemKind,
    has_setting,
    merged,
    server_optimizer_for,
)
from .task import Task

log = logging.getLogger(__name__)

ALIASES = {"fedfsc+(baseline+)": "fedfsc+(fedavg+)", "drop": "fedavg", "reduced": "fedavg+"}
ELSEWHERE = {
    "mixed": "what a task is without a system: leave it out",
    "choose": "what a task is without a system: leave it out",
    "centralised": "all data in one place: only `simulate` has that",
}
"""Names that `simulate` compares and that no task can be run as."""
CENTRAL_NOISE = {"epsilon": 5.0, "delta": 1e-3, "clip_norm": 1.0}
"""The settings of `masks` under +central-dp, where the task has none of its own."""
SERVERS = ("fedadam", "fedyogi", "fedadagrad", "fedavgm", "fedexp")
MODIFIERS: Mapping[str, str] = {
    "": "stragglers train one epoch instead of being dropped",
    "drawn": "stragglers train 1 to all epochs, drawn anew in each round, instead of being dropped",
    "fedprox": "local training stays near the base",
    "moon": "local training is contrasted with the device's last",
    **{name: f"{SYSTEMS[name].says.partition(', ')[2]}" for name in SERVERS},
    "dp": "local training is differentially private (epsilon 5, delta 1e-3)",
    "central-dp": "mask helpers add noise, so that each device's part is private (epsilon 5, delta 1e-3)",
    "fast": "rounds close when the fast devices are done, what comes later counts in the next round",
    "all": "rounds close when all devices are done",
}
ALTERNATIVES = (SERVERS, ("all", "fast"), ("", "drawn"))
"""Modifiers of which a system takes one."""


def names() -> tuple[str, ...]:
    """The names of all systems, and of all kinds alone; modifiers may follow."""
    return (*SYSTEMS, *(kind for kind in registry.kinds() if kind not in SYSTEMS))


def task_as_system(name: str, task: Task, devices: int | None = None) -> Task:
    """The task as the system of this name, for so many devices if that is known.

    Raises TaskError, ModelError.
    """
    system, modifiers = _parsed(name)
    return with_modifiers(system.of(task), modifiers, task, devices)


def with_modifiers(task: Task, modifiers: Iterable[str], original: Task, devices: int | None = None) -> Task:
    """The task with these modifiers; `original` is the task before a system changed it. Raises TaskError."""
    for modifier in modifiers:
        task = _modified(task, modifier, original, devices)
    return task


def expected_rounds(task: Task, devices: int | None) -> int:
    """The rounds in which one device is expected to take part, rounded up.

    All rounds of the task where every device is asked, or where it is not known how many there are.
    """
    cohort = task.devices_per_round
    if cohort is None or devices is None or cohort >= devices:
        return task.rounds
    return -(-task.rounds * cohort // devices)


def describe(name: str) -> str:
    """A one-line description of a system with its modifiers. Raises TaskError."""
    system, modifiers = _parsed(name)
    return "; ".join((f"{system.says} ({system.source})", *(MODIFIERS[modifier] for modifier in modifiers)))


def _parsed(name: str) -> tuple[System, tuple[str, ...]]:
    """The system with the longest name that `name` begins with, and the modifiers that follow."""
    if name in ELSEWHERE:
        raise TaskError(f"{name!r}: {ELSEWHERE[name]}")
    name = ALIASES.get(name, name)
    systems = {**SYSTEMS, **{kind: _alone(kind) for kind in registry.kinds()}}
    bases = [base for base in systems if name == base or name.startswith(f"{base}+")]
    if not bases:
        raise TaskError(f"no system is called {name!r}; {_instead(name)}")
    base = max(bases, key=len)
    rest = name[len(base) :]
    return systems[base], modifiers_of(name, rest)


def modifiers_of(name: str, rest: str) -> tuple[str, ...]:
    """The modifiers in `rest`, the part of `name` after the system, as in "+dp". Raises TaskError."""
    modifiers = tuple(rest.split("+")[1:])
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            known_text = ", ".join(f"+{m}" for m in MODIFIERS)
            raise TaskError(f"{name!r}: there is no modifier +{modifier}; there are {known_text}")
    for one_of in ALTERNATIVES:
        if len(both := [modifier for modifier in modifiers if modifier in one_of]) > 1:
            raise TaskError(f"{name!r}: +{both[0]} and +{both[1]} are alternatives")
    return modifiers


def _instead(name: str) -> str:
    """A hint at similar names, or at all names: `device-runtime systems` shows more than fits into a line."""
    candidates = (*names(), *ALIASES, *ELSEWHERE)
    near = get_close_matches(name.lower().partition("+")[0], candidates, n=3, cutoff=0.7)
    if near:
        return f"near it are {', '.join(near)}; `device-runtime systems` lists all"
    return f"there are {', '.join(names())}"


def _alone(kind: str) -> System:
    """The system of one kind for every device, as published."""
    fixed = AS_PUBLISHED if kind == "class-means" else {}
    return System(f"{kind} alone, for every device", "as published", (SystemKind(kind, fixed),))


def _modified(task: Task, modifier: str, original: Task, devices: int | None) -> Task:
    """The task with one modifier; `original` and `devices` as in `with_modifiers`."""
    if modifier in SERVERS:
        return msgspec.structs.replace(task, server=server_optimizer_for(original, modifier))
    if modifier in ("all", "fast"):
        return msgspec.structs.replace(task, wait_for=modifier)
    if modifier == "central-dp":
        return _with_central_noise(task)
    changes: Mapping[str, Settings] = {
        "": {"reduced_epochs": 1},
        "drawn": {"drawn_epochs": True},
        "fedprox": {"terms": {"fedprox": {}}},
        "moon": {"terms": {"moon": {}}},
        "dp": {"terms": {"dp-sgd": {"rounds": expected_rounds(task, devices)}}},
    }
    change = changes[modifier]
    setting = next(f"terms.{term}" for term in change["terms"]) if "terms" in change else next(iter(change))
    if not any(has_setting(kind.name, setting) for kind in task.kinds):
        kinds = ", ".join(kind.name for kind in task.kinds)
        raise TaskError(f"+{modifier} changes {setting}, which none of {kinds} has")
    changed = tuple(
        msgspec.structs.replace(kind, settings=_with(kind, change))
        if has_setting(kind.name, setting)
        else kind
        for kind in task.kinds
    )
    return msgspec.structs.replace(task, kinds=changed)


def _with_central_noise(task: Task) -> Task:
    """The task with noise in its masked sums. Raises TaskError for a task without masks."""
    if task.masks is None:
        raise TaskError(
            "+central-dp is noise of mask helpers, and the task has none: give masks.helpers "
            "(serve --mask-helpers)"
        )
    if task.masks.noisy:
        return task
    masks = msgspec.structs.replace(task.masks, **CENTRAL_NOISE)
    return msgspec.structs.replace(task, masks=masks)


def _with(kind: KindSettings, change: Settings) -> Settings:
    """The kind's settings with this change; a value that the task has already stays, unless it is off."""
    own = {name: value for name, value in kind.settings.items() if value or name not in change}
    return merged(change, own)


NAMES = {"lr": "learning rate", "epochs": "local epochs", "batch": "batch size"}


def _of_all_kinds(of_kind: Any, meaning: str) -> Setting:
    """A setting of a kind as one of all kinds of a task, with the same limits."""
    setting: Setting = of_kind.__metadata__[0]
    return replace(setting, meaning=meaning, none="each kind's own")


class SharedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that replace those of every kind that has them; None leaves a kind's own."""

    lr: Annotated[
        float | None,
        _of_all_kinds(LearningRate, "Train at this learning rate in all kinds that train in epochs."),
    ] = None
    epochs: Annotated[
        int | None,
        _of_all_kinds(LocalEpochs, "Train this many local epochs in all kinds that train in epochs."),
    ] = None
    batch: Annotated[
        int | None,
        _of_all_kinds(BatchSize, "Train in batches of this many samples in all kinds that train in epochs."),
    ] = None
    codec: Annotated[
        str | None,
        _of_all_kinds(Codec, "Send updates by this codec: delta, half or int8, deflate, joined by +."),
    ] = None

    def in_task(self, task: Task) -> SharedSettings:
        """Those that some kind of the task has."""
        unused = {name: None for name in self.given if not any(has_setting(k.name, name) for k in task.kinds)}
        return msgspec.structs.replace(self, **unused)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that are not None."""
        return tuple(name for name, value in msgspec.structs.asdict(self).items() if value is not None)

    def applied(self, task: Task, level: int = logging.DEBUG) -> Task:
        """The task with these settings; logs which kinds they change, at this level.

        Raises TaskError for a setting that no kind has, or a value that is not allowed.
        """
        task = _with_training(task, self, level)
        return task if self.codec is None else with_codec(task, self.codec)


def _with_training(task: Task, shared: SharedSettings, level: int) -> Task:
    """The task with the learning rate, epochs and batch size of `shared`.

    They apply to kinds that train in epochs. Other kinds need a learning rate of another magnitude and keep
    their own, unless no offered kind trains in epochs.
    """
    for setting, label in NAMES.items():
        value = getattr(shared, setting)
        if value is None:
            continue
        having = [kind.name for kind in task.kinds if has_setting(kind.name, setting)]
        chosen = [name for name in having if has_setting(name, "epochs")] or having
        rest = [kind.name for kind in task.kinds if kind.name not in chosen]
        if not chosen:
            raise TaskError(f"--{setting} {value:g}: no kind offered has {label}; offered: {', '.join(rest)}")
        kinds = tuple(
            _with_settings(kind, {setting: value}) if kind.name in chosen else kind for kind in task.kinds
        )
        task = msgspec.structs.replace(task, kinds=kinds)
        unchanged = f"; unchanged: {', '.join(rest)}" if rest else ""
        log.log(level, "%s %g: %s%s", label, value, ", ".join(chosen), unchanged)
    return task


def _with_settings(kind: KindSettings, changes: Mapping[str, Any]) -> KindSettings:
    return msgspec.structs.replace(kind, settings={**kind.settings, **changes})


def with_codec(task: Task, word: str) -> Task:
    """The task with this codec for all kinds that have the setting; the others still send exact numbers.

    It replaces the kinds' own codecs; "" is no codec. Raises TaskError for an unknown codec, or one that no
    kind would use.
    """
    try:
        codecs.codec_named(word)
    except CodecError as error:
        raise TaskError(str(error)) from None
    if word and not any(registry.codec_setting(kind.name, word) for kind in task.kinds):
        kinds = ", ".join(kind.name for kind in task.kinds)
        raise TaskError(f"codec {word}: the numbers of {kinds} are sent exactly as they are")
    changed = tuple(_with_settings(kind, registry.codec_setting(kind.name, word)) for kind in task.kinds)
    return msgspec.structs.replace(task, kinds=changed)
