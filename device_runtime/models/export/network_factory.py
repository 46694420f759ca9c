"""Builds the torch module for `device-runtime export`; imports torch only when it builds."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from device_runtime.extras import extra_needed
from device_runtime.models import networks
from device_runtime.models.errors import ExportError
from device_runtime.models.networks.own import own_network

T = TypeVar("T")

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
    values = settings(args.set) if options is None else options
    if ":" in args.factory:
        module = own_network(args.factory, values, "give arguments by --set NAME=VALUE")
    else:
        module = networks.build(args.factory, values)
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
