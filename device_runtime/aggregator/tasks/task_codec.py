"""One codec for a whole task: by which those of its kinds send that can."""

from __future__ import annotations

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.strategies import registry
from device_runtime.strategies.codecs import chain as codecs
from device_runtime.strategies.codecs.codec import CodecError

from .task import Task


def coded(task: Task, word: str) -> Task:
    """The task with this codec in the place of what its kinds have; kinds without the setting stay exact.

    The empty word sends all of them as they are. Raises TaskError for one that is no codec, or that nothing
    would send by.
    """
    try:
        codecs.named(word)
    except CodecError as error:
        raise TaskError(str(error)) from None
    if word and not any(registry.coding(kind.name, word) for kind in task.kinds):
        kinds = ", ".join(kind.name for kind in task.kinds)
        raise TaskError(f"codec {word}: the numbers of {kinds} are sent exactly as they are")
    changed = tuple(
        msgspec.structs.replace(kind, settings={**kind.settings, **registry.coding(kind.name, word)})
        for kind in task.kinds
    )
    return msgspec.structs.replace(task, kinds=changed)
