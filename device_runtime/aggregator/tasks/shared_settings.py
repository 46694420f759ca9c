"""Sets learning rate, local epochs, batch size or codec for all kinds of a task that have them."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.strategies.codecs import chain as codecs
from device_runtime.strategies.codecs.codec import CodecError
from device_runtime.strategies.kinds import registry

from .kind_settings import KindSettings
from .known_systems import has_setting
from .task import Task

log = logging.getLogger(__name__)

NAMES = {"lr": "learning rate", "epochs": "local epochs", "batch": "batch size"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options `--lr`, `--epochs` and `--batch`."""
    add = parser.add_argument
    whose = "in all kinds that train in epochs (default: each kind's own)"
    add("--lr", type=float, metavar="RATE", help=f"Train at this learning rate {whose}.")
    add("--epochs", type=int, metavar="N", help=f"Train this many local epochs {whose}.")
    add("--batch", type=int, metavar="N", help=f"Train in batches of this many samples {whose}.")


class SharedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that replace those of every kind that has them; None leaves a kind's own."""

    lr: float | None = None
    epochs: int | None = None
    batch: int | None = None
    codec: str | None = None

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
            raise TaskError(f"--{setting} {value:g}: no kind offered has {label}; offered: {_listed(rest)}")
        kinds = tuple(_with(kind, setting, value) if kind.name in chosen else kind for kind in task.kinds)
        task = msgspec.structs.replace(task, kinds=kinds)
        unchanged = f"; unchanged: {_listed(rest)}" if rest else ""
        log.log(level, "%s %g: %s%s", label, value, _listed(chosen), unchanged)
    return task


def _with(kind: KindSettings, setting: str, value: float) -> KindSettings:
    return msgspec.structs.replace(kind, settings={**kind.settings, setting: value})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


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
    changed = tuple(
        msgspec.structs.replace(kind, settings={**kind.settings, **registry.codec_setting(kind.name, word)})
        for kind in task.kinds
    )
    return msgspec.structs.replace(task, kinds=changed)
