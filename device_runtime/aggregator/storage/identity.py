"""Whether a run folder is that of this task and these models."""

from __future__ import annotations

import secrets

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.tasks.task import Task, decode

from .store import Identity, Store

SHA_BYTES = 32


def identified(store: Store, task: Task, shas: tuple[bytes, ...]) -> tuple[str, bool]:
    """The run's name, and whether it goes on; a new folder becomes this task's.

    `shas` are of the main model's bundle and the smaller ones', in the task's order. Raises RunFolderError
    for the folder of another task, or one that was begun with other models.
    """
    mine = Identity(task.json(), secrets.token_hex(4), b"".join(shas))
    found = store.identity()
    if found is None:
        store.found(mine)
        (store.folder / "task.json").write_bytes(mine.task + b"\n")
        return mine.run, False
    begun = decode(found.task)  # settings that are newer than the run have their defaults
    if begun.json() != mine.task:
        changed = ", ".join(_differences(begun, decode(mine.task)))
        raise RunFolderError(
            f"run folder {store.folder} belongs to another task ({changed}): give another --run-dir, "
            "or the settings it was begun with"
        )
    begun_with = (found.bundles[at : at + SHA_BYTES] for at in range(0, len(mine.bundles), SHA_BYTES))
    for path, old, new in zip((task.bundle, *task.family), begun_with, shas, strict=True):
        if old != new:
            raise RunFolderError(
                f"run folder {store.folder} was begun with another bundle {path} "
                f"({old.hex()[:8]}, now {new.hex()[:8]}): give another --run-dir"
            )
    return found.run, True


def _differences(old: Task, new: Task) -> list[str]:
    """Settings that differ, with both values where they are short."""
    texts = []
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            texts.append(field if field == "kinds" else f"{field} {before}, now {after}")
    return texts
