"""Local samples, wherever the device has them: files, class folders, tables, a database; prepared for a task.

One file for each way to store them, none of which knows the task; `Shelf` puts them together.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .place import Place

if TYPE_CHECKING:
    from .reading import Stamp, check_path, load, opened, raw, stamp
    from .shelf import Selection, Shelf

__all__ = ["Place", "Selection", "Shelf", "Stamp", "check_path", "load", "opened", "raw", "stamp"]


def __getattr__(name: str) -> Any:
    """What reads samples needs numpy, and is imported when it is first asked for; a place does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = ".shelf" if name in ("Selection", "Shelf") else ".reading"
    return getattr(import_module(module, __name__), name)
