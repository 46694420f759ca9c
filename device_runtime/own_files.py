"""Loads files of a user's own code, each of them once."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FILES: dict[str, Path] = {}
"""The files of loaded modules, by the name of the module."""
_loading: list[str] = []


def _module_of(path: Path) -> ModuleType:
    """The module of a file, which is run only once. Raises ImportError, and what the file raises."""
    path = path.resolve()
    name = f"own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    FILES[name] = path
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_loading() -> bool:
    """Whether the code that runs now was called while a source was being loaded."""
    return bool(_loading)


def load(source: str) -> Any:
    """The object that FILE.py:NAME or PACKAGE.MODULE:NAME names; its file is run once.

    Raises ImportError, AttributeError, and what the file raises.
    """
    where, _, name = source.rpartition(":")
    _loading.append(source)
    try:
        module = _module_of(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        return getattr(module, name)
    finally:
        _loading.pop()
