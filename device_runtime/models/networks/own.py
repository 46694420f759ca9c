"""Networks of a user's own, by the name of their code: FILE.py:NAME or PACKAGE.MODULE:NAME.

NAME is an nn.Module, or a function or class that gives one. Nothing is imported that the user has not named.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runtime import own_files
from device_runtime.models.errors import ExportError, one_line

if TYPE_CHECKING:
    from torch import nn

_HERE: dict[str, Any] = {}
"""Modules and functions that this process alone has, by their sources."""
_SITE = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


def own_network(source: str, settings: Mapping[str, Any], hint: str = "") -> nn.Module:
    """The module that a source names, made with these settings if it is a function or class.

    hint: how to give settings, said where they are missing. Raises ExportError.
    """
    from torch import nn

    named = _named(source)
    if isinstance(named, nn.Module):
        if settings:
            raise ExportError(f"{source} is a module and takes no settings ({', '.join(settings)})")
        return named
    try:
        network = named(**settings)
    except (Exception, SystemExit) as error:
        with_settings = f" with {settings}" if settings else ""
        advice = f"; {hint}" if hint and "required positional argument" in str(error) else ""
        raise ExportError(
            f"{source}{with_settings} fails: {type(error).__name__}: {one_line(error)}"
            f"{raised_at(error)}{advice}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ExportError(f"{source} gives a {type(network).__name__}, expected a torch.nn.Module")
    return network


def own_function(source: str) -> Callable[..., Any]:
    """The function that a source names. Raises ExportError."""
    function: Callable[..., Any] = _named(source)
    return function


def absolute(source: str) -> str:
    """The source with the whole path of its file, which means the same in every folder."""
    where, _, name = source.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if where.endswith(".py") else source


def is_portable(source: str) -> bool:
    """Whether other processes can load a source, because this one has not just been given its object."""
    return source not in _HERE


@contextmanager
def source_of(module: nn.Module | Callable[..., Any] | str) -> Iterator[str]:
    """Names a module, a function that gives one, or a loss, for this process and until the `with` ends.

    A text is a source itself. Raises ExportError for anything else.
    """
    if isinstance(module, str):
        yield module
        return
    if not callable(module):
        raise ExportError(
            f"module is {module!r}, expected a torch.nn.Module, a function that gives one, or FILE.py:NAME"
        )
    source = f":{getattr(module, '__qualname__', type(module).__qualname__)}"
    while source in _HERE:  # of a simulation in another thread
        source += "'"
    _HERE[source] = module
    try:
        yield source
    finally:
        del _HERE[source]


def raised_at(error: BaseException) -> str:
    """Where the user's code raised the error, as " (net.py, line 12)"; empty where it did not."""
    libraries = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"), *_SITE)
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith((*libraries, "<"))]
    return f" ({Path(users[-1].filename).name}, line {users[-1].lineno})" if users else ""


def _named(source: str) -> Any:
    if source in _HERE:
        return _HERE[source]
    where, colon, name = source.rpartition(":")
    if source.startswith(":"):
        raise ExportError(f"module {name} is one of another process: name it by FILE.py:NAME")
    if not (where and colon and name.isidentifier()) or where.startswith("."):
        raise ExportError(
            f"{source!r} is not FILE.py:NAME or MODULE:NAME, as in mynetwork:build for build in mynetwork.py"
        )
    if where.endswith(".py") and not Path(where).is_file():
        raise ExportError(f"{source}: there is no file {where}")
    beside = str(Path(where).resolve().parent if where.endswith(".py") else Path.cwd())
    if beside not in sys.path:
        sys.path.append(beside)  # last, so that a folder there cannot hide one of our packages
    try:
        named = own_files.load(source)
    except (Exception, SystemExit) as error:  # importing runs the user's module
        why = f"{type(error).__name__}: {one_line(error)}{raised_at(error)}"
        raise ExportError(
            f"{source} cannot be imported from here or from what is installed: {why}"
        ) from error
    if not callable(named):
        raise ExportError(f"{source} is a {type(named).__name__}, expected a function or class to call")
    return named
