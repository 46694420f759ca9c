"""Finds the members of the task's family that each kind of update trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.strategies.kinds.registry import KINDS

from .kind_settings import KindSettings
from .known_systems import has_setting
from .task import Task

MEMBERS = "members"
MAIN = ""


def with_members(task: Task, names: tuple[str, ...]) -> Task:
    """The task, with the members of its family in each kind that trains them.

    names: those of the bundles in `task.family`, in its order. A kind without `members` gets all of them. In
    `members` a model is called by its name, its path as in `family`, or its file's name. Raises TaskError for
    a member that is not in the family.
    """
    if not names:
        return task
    spellings = _spellings(task, names)
    kinds = tuple(_with_members(kind, names, spellings) for kind in task.kinds)
    return msgspec.structs.replace(task, kinds=kinds)


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
    for path, name in zip(task.family, names, strict=True):
        for spelling in {path, PurePath(path).name, PurePath(path).stem, name}:
            if names_by_spelling.setdefault(spelling, name) != name:
                several.add(spelling)
    return {spelling: name for spelling, name in names_by_spelling.items() if spelling not in several} | {
        name: name for name in names
    }
