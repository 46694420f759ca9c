"""Sets learning rate, local epochs, batch size or codec for all kinds of a task that have them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.strategies.codecs import chain as codecs
from device_runtime.strategies.codecs.codec import CodecError
from device_runtime.strategies.interface.capabilities import Codec
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.settings import BatchSize, LearningRate, LocalEpochs, Setting

from .kind_settings import KindSettings
from .known_systems import has_setting
from .task import Task

log = logging.getLogger(__name__)

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
        kinds = tuple(_with(kind, {setting: value}) if kind.name in chosen else kind for kind in task.kinds)
        task = msgspec.structs.replace(task, kinds=kinds)
        unchanged = f"; unchanged: {', '.join(rest)}" if rest else ""
        log.log(level, "%s %g: %s%s", label, value, ", ".join(chosen), unchanged)
    return task


def _with(kind: KindSettings, changes: Mapping[str, Any]) -> KindSettings:
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
    changed = tuple(_with(kind, registry.codec_setting(kind.name, word)) for kind in task.kinds)
    return msgspec.structs.replace(task, kinds=changed)
