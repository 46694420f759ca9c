"""Reads a device's own samples from files, class folders, tables or a database, and prepares them.

There is one module for each format, and none of them knows the task; `LocalSamples` collects the samples for
a task.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .sample_source import SampleSource

if TYPE_CHECKING:
    from .local_samples import LocalSamples, Selection, load, open_samples
    from .reading import Stamp, raw, stamp

__all__ = [
    "LocalSamples",
    "SampleSource",
    "Selection",
    "Stamp",
    "load",
    "open_samples",
    "raw",
    "stamp",
]


def __getattr__(name: str) -> Any:
    """Imports the readers when they are first used, because they need numpy; `SampleSource` does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = ".reading" if name in ("Stamp", "raw", "stamp") else ".local_samples"
    return getattr(import_module(module, __name__), name)
