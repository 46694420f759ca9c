"""Loads own kinds of update, terms, merge rules and policies from files, packages and scripts.

A source is "mykinds.py:TopK" or "package.module:TopK". Installed packages name theirs in the entry points of
GROUPS. Sources reach the processes that this one starts by an environment variable.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, ClassVar

from device_runtime import own_files

from .errors import KindError, OwnCodeError

log = logging.getLogger(__name__)

VARIABLE = "DEVICE_RUNTIME_PLUGINS"
"""Names the environment variable: a JSON list of sources."""
GROUPS = tuple(f"device_runtime.{sort}" for sort in ("kinds", "terms", "merge_rules", "policies"))
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
"""The folders of this package and of Python's own library."""


class Plugin:
    """Base of what users can add by a class of their own: kinds, local terms, merge rules, policies."""

    name: ClassVar[str]
    """Its name in tasks and offers."""
    registry: ClassVar[dict[str, Any]]
    """The classes of this sort by name, own and shipped ones, as far as they are loaded."""


def load_object(source: str) -> Any:
    """The object that a source names; its file is run once. Raises KindError, which says what is wrong."""
    where, _, name = absolute(source).rpartition(":")
    if not where or not name:
        raise KindError(f"{source!r} names no class, expected FILE.py:CLASS or PACKAGE.MODULE:CLASS")
    try:
        return own_files.load(f"{where}:{name}")
    except AttributeError:
        raise KindError(f"{where} has no {name}") from None
    except KindError:
        raise
    except Exception as error:
        raise KindError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error


def absolute(source: str) -> str:
    """The source with the whole path of its file, which means the same in every folder.

    Raises KindError if there is no such file.
    """
    where, _, name = source.rpartition(":")
    if not where.endswith(".py"):
        return source
    if not Path(where).is_file():
        raise KindError(f"there is no file {where}")
    return f"{Path(where).resolve()}:{name}"


def sources() -> tuple[str, ...]:
    """The sources that this process, and every process that it starts, knows."""
    try:
        entries = json.loads(os.environ.get(VARIABLE, "[]"))
    except ValueError as error:
        raise KindError(f"{VARIABLE} is no JSON list of sources: {error}") from None
    return tuple(map(str, entries))


def share(source: str) -> None:
    """Let the processes that this one starts load a source, too."""
    entries = sources()
    if source not in entries:
        os.environ[VARIABLE] = json.dumps([*entries, source])


def source_of(part: type) -> str:
    """The source from which another process can load a class; empty if it is only known in this process.

    That is so for classes of a notebook or of a function.
    """
    if "." in part.__qualname__:
        return ""
    if part.__module__ in own_files.FILES:
        return f"{own_files.FILES[part.__module__]}:{part.__qualname__}"
    if "." in part.__module__:
        return f"{part.__module__}:{part.__qualname__}"
    try:
        file = Path(inspect.getfile(part)).resolve()
    except (OSError, TypeError):
        return ""
    return f"{file}:{part.__qualname__}" if file.suffix == ".py" and file.is_file() else ""


def is_shipped(part: type[Any]) -> bool:
    """Whether a class is of this package, and none of a user's own."""
    return part.__module__.startswith("device_runtime.")


class own_code:  # noqa: N801  a context manager, written as a class as it is entered several times an update
    """Turns an error of a user's own code into an OwnCodeError with its file and line.

    Errors of this package's own classes pass, as own code may raise them too; so does every error of shipped
    code.
    """

    __slots__ = ("part",)

    def __init__(self, part: type[Any]) -> None:
        """`part`: the class whose method runs."""
        self.part = part

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, MemoryError) or is_shipped(type(error)):
            return
        place, part = place_of(error), self.part
        if not place and is_shipped(part):
            return
        place = place or place_of_class(part) or f"class {part.__qualname__}"
        raise OwnCodeError(f"{place}: {type(error).__name__}: {error}") from error


def place_of(error: BaseException) -> str:
    """Where code of a user's own, called by this package, raised it: "FILE:LINE"; else empty."""
    own = {str(path) for path in own_files.FILES.values()} | _files_of_own_classes()
    frames = traceback.extract_tb(error.__traceback__)
    called = dropwhile(lambda frame: not frame.filename.startswith(_PACKAGE), frames)
    places = [frame for frame in called if frame.filename in own]
    return f"{places[-1].filename}:{places[-1].lineno}" if places else ""


def place_of_class(part: type[Any], method: str = "") -> str:
    """Where a user's own class, or its own method of this name, is defined: "FILE:LINE"; else empty."""
    codes = [
        code
        for each in part.__mro__
        if not is_shipped(each)
        for name, value in vars(each).items()
        if (code := _code_of(value)) is not None and (not method or name == method)
    ]
    if codes:
        return f"{codes[0].co_filename}:{codes[0].co_firstlineno}"
    return place_of_class(part) if method else ""


def _files_of_own_classes() -> set[str]:
    """The files, or cells of a notebook, in which registered classes of a user's own have methods."""
    return {
        code.co_filename
        for sort in Plugin.__subclasses__()
        for part in sort.registry.values()
        for each in part.__mro__
        if not is_shipped(each)
        for value in vars(each).values()
        if (code := _code_of(value)) is not None
    }


def _code_of(member: object) -> CodeType | None:
    """The code that a user wrote for a member of a class; None for data and for what dataclass adds."""
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    code: object = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or code.co_filename == "<string>":
        return None
    return None if code.co_filename.startswith(_STANDARD) else code


def installed() -> Iterator[Any]:
    """The parts that installed packages offer; one that cannot be loaded is skipped with a warning."""
    from importlib import metadata  # 2 MB that a device needs only for a kind that it does not know

    for group in GROUPS:
        for point in metadata.entry_points(group=group):
            try:
                yield point.load()
            except Exception as error:
                log.warning("%s of %s cannot be loaded: %s", point.name, point.value, error)
