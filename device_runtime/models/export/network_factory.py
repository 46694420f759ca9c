"""Builds the torch module for `device-runtime export`; imports torch only when it builds."""

import argparse
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from device_runtime.extras import extra_needed
from device_runtime.models import networks
from device_runtime.models.errors import ExportError, one_line

T = TypeVar("T")

_SITE = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files in a folder; the first that exists is read."""


def build(args: argparse.Namespace, options: Mapping[str, Any] | None = None) -> Any:
    """The module that the arguments name, with its weights. Raises ExportError.

    `options`, if not None, replaces the settings of the arguments (`--set`).
    """
    check_torch()
    import torch

    from device_runtime.models.torch_modules.parameters import find_head, load_weights

    if args.new_head and args.weights is None:
        raise ExportError("--new-head is for --weights; without them the whole module is new")
    if not 0 <= args.seed < 1 << 63:
        raise ExportError(f"--seed is {args.seed}, expected 0 to {(1 << 63) - 1}")
    torch.manual_seed(args.seed)
    module = _module(args.factory, settings(args.set) if options is None else options)
    if not isinstance(module, torch.nn.Module):
        raise ExportError(f"{args.factory} gives a {type(module).__name__}, expected a torch.nn.Module")
    if args.weights is not None:
        head = find_head(module, args.head) if args.new_head else None
        load_weights(module, _weights_file(args.weights), skip_head=head)
    return module


def check_torch() -> None:
    """Imports what exports need. Raises ExportError, which says what to install, where it is missing."""
    try:
        import onnx
        import onnxscript
        import torch
    except ImportError as error:
        raise ExportError(extra_needed("export", "torch", error.name)) from error
    del onnx, onnxscript, torch


def _weights_file(weights: Path) -> Path:
    if not weights.is_dir():
        return weights
    file = next((weights / name for name in FILES if (weights / name).is_file()), None)
    if file is None:
        raise ExportError(f"{weights} has none of {', '.join(FILES)}")
    return file


def _module(where: str, options: Mapping[str, Any]) -> Any:
    if ":" not in where:
        return networks.build(where, options)
    factory = _factory(where)
    if hasattr(factory, "state_dict") and not isinstance(factory, type):  # a module that was made already
        if options:
            raise ExportError(f"{where} is a module and takes no settings ({', '.join(options)})")
        return factory
    try:
        return factory(**options)
    except (Exception, SystemExit) as error:
        settings = f" with {options}" if options else ""
        hint = "; give arguments by --set NAME=VALUE" if "required positional argument" in str(error) else ""
        raise ExportError(
            f"{where}{settings} fails: {type(error).__name__}: {one_line(error)}{raised_at(error)}{hint}"
        ) from error


def raised_at(error: BaseException) -> str:
    """Where the user's code raised the error, as " (net.py, line 12)"; empty where it did not."""
    libraries = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"), *_SITE)
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith((*libraries, "<"))]
    return f" ({Path(users[-1].filename).name}, line {users[-1].lineno})" if users else ""


def _factory(where: str) -> Any:
    package, colon, name = where.partition(":")
    if not (package and colon and name) or package.startswith("."):
        raise ExportError(f"{where!r} is not MODULE:NAME, as in mynetwork:build for build in mynetwork.py")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that a folder here cannot hide one of our packages
    try:
        factory = getattr(importlib.import_module(package), name)
    except (Exception, SystemExit) as error:  # importing runs the user's module
        hint = f"{type(error).__name__}: {one_line(error)}{raised_at(error)}"
        raise ExportError(
            f"{where} cannot be imported from here or from what is installed: {hint}"
        ) from error
    if not callable(factory):
        raise ExportError(f"{where} is a {type(factory).__name__}, expected a function or class to call")
    return factory


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parses pairs NAME=VALUE; a value is a JSON literal, or else a string. Raises ExportError."""
    return unique_pairs(_pair(item) for item in pairs)


def unique_pairs(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """The pairs as a dict. Raises ExportError for a name that is given twice."""
    values: dict[str, T] = {}
    for name, value in pairs:
        if name in values:
            raise ExportError(f"{name} is given twice, as {values[name]} and as {value}")
        values[name] = value
    return values


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ExportError(f"{text!r} is not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
