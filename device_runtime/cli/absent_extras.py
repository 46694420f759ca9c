"""Lists the options of commands whose extras are not installed: stands in for their modules meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from device_runtime.extras import EXTRAS


class _Placeholder:
    """In place of a class or function of a module that is not installed."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Placeholder,), {})


class _AbsentModules(MetaPathFinder, Loader):
    """Finds the modules of extras that are not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._names:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def standing_in() -> Iterator[None]:
    """Inside, modules of extras that are not installed can be imported, though nothing of them works.

    They, and those of this package that were imported inside, are forgotten afterwards.
    """
    modules = {module for extra in EXTRAS.values() for module in extra.modules}
    missing = frozenset(module for module in modules if find_spec(module) is None)
    absent = _AbsentModules(missing)
    before = set(sys.modules)
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in {*missing, "device_runtime"}:
                del sys.modules[name]
