"""`device-runtime export`: a torch module becomes a bundle."""

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tabulate import tabulate

from models import torch_networks as networks
from models.errors import ExportError, one_line
from models.manifest import InputSpec, Source

if TYPE_CHECKING:
    from models.torch_export import ExportSpec

HELP = "write a torch module as a bundle that devices run without torch"
EXAMPLE = (
    "device-runtime export wrn --set depth=10 --set width=1 --set in_channels=1 --set classes=10 "
    "--input 1,8,8 --labels 0,1,2,3,4,5,6,7,8,9 --out digits"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add(
        "factory",
        help=f"{', '.join(networks.NETWORKS)}; or package.module:name of what gives the torch module",
    )
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="argument of the factory")
    add("--input", required=True, metavar="C,H,W", help="shape of one sample, channels first")
    add("--labels", required=True, metavar="A,B,..", help="names of the classes, in the order of the logits")
    add("--out", required=True, type=Path, help="folder of the bundle")
    add("--name", help="name of the bundle (default: that of the folder)")
    add(
        "--weights",
        type=Path,
        help="safetensors, npz or torch state dict (default: as the factory makes them)",
    )
    add("--new-head", action="store_true", help="take the weights without the head, for other labels")
    add("--seed", type=int, default=0, help="of the random weights (default: 0)")
    add("--scale", type=float, default=1.0, help="multiplies raw values, before mean and std (default: 1)")
    add("--mean", default="0", metavar="M,..", help="subtracted, one or one per channel (default: 0)")
    add("--std", default="1", metavar="S,..", help="divided by, one or one per channel (default: 1)")
    add("--head", metavar="NAME", help="the nn.Linear that gives the logits (default: the last)")
    add("--level", action="append", default=[], metavar="PREFIX=LEVEL", help="low, mid, up or head")


def run(args: argparse.Namespace) -> int:
    """Writes the bundle and prints what is in it. Raises ModelError."""
    module = build(args)  # first: it says what to install where torch is missing
    from models.torch_export import Checked, export

    checked: list[Checked] = []

    def report(graph: Checked) -> None:
        checked.append(graph)
        print(f"{graph.name} computes what torch computes", file=sys.stderr)

    bundle = export(module, spec(args), args.out, report)
    rows = [(g.name, f"{g.bytes / 1000:.1f}", f"{g.worst:.0e}") for g in checked]
    print(tabulate(rows, ("graph", "KB", "off torch by"), disable_numparse=True, stralign="right"))
    count = bundle.manifest.num_parameters()
    print(f"\n{args.out}: {len(bundle.packed()) / 1000:.0f} KB, {count} trainable, sha256 {bundle.sha256}")
    return 0


def build(args: argparse.Namespace) -> Any:
    """The module the arguments ask for, with its weights. Raises ExportError."""
    try:
        import onnx
        import onnxscript
        import torch
    except ImportError as error:
        hint = "pip install 'device-runtime[torch]'"
        raise ExportError(f"export needs {error.name}, which is not installed: {hint}") from error
    del onnx, onnxscript
    from models.torch_levels import find_head
    from models.torch_weights import load_weights

    if args.new_head and args.weights is None:
        raise ExportError("--new-head is for --weights; without them the whole module is new")
    torch.manual_seed(args.seed)
    module = _made(args.factory, _settings(args))
    if not isinstance(module, torch.nn.Module):
        raise ExportError(f"{args.factory} gives a {type(module).__name__}, expected a torch.nn.Module")
    if args.weights is not None:
        head = find_head(module, args.head) if args.new_head else None
        load_weights(module, args.weights, skip_head=head)
    return module


def _made(where: str, settings: dict[str, Any]) -> Any:
    if ":" not in where:
        return networks.build(where, settings)
    factory = _factory(where)
    try:
        return factory(**settings)
    except Exception as error:
        raise ExportError(f"{where} with {settings} fails: {one_line(error)}") from error


def _factory(where: str) -> Any:
    package, colon, name = where.partition(":")
    if not (package and colon and name) or package.startswith("."):
        raise ExportError(f"{where!r} is not MODULE:NAME, as in mynetwork:build for build in mynetwork.py")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a folder here named like one of ours stays hidden
    try:
        found = getattr(importlib.import_module(package), name)
    except Exception as error:  # a module of the user's runs when it is imported
        hint = f"{type(error).__name__}: {one_line(error)}"
        raise ExportError(
            f"{where} cannot be imported from here or from what is installed: {hint}"
        ) from error
    if not callable(found):
        raise ExportError(f"{where} is a {type(found).__name__}, expected a function or class to call")
    return found


def spec(args: argparse.Namespace) -> "ExportSpec":
    """What the arguments say about the bundle. Raises ExportError."""
    from models.torch_export import ExportSpec

    try:
        shape = _numbers(args.input, int)
        given = InputSpec(shape, args.scale, _numbers(args.mean), _numbers(args.std))
    except ValueError as error:
        raise ExportError(one_line(error)) from error
    if min(shape) < 1:
        raise ExportError(f"--input {args.input} holds a size below 1")
    return ExportSpec(
        name=args.name or args.out.resolve().name,
        input=given,
        labels=tuple(args.labels.split(",")),
        head=args.head,
        levels=dict(_level(item) for item in args.level) or None,
        source=None if ":" in args.factory else Source(args.factory, _settings(args)),
    )


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return dict(_pair(item) for item in args.set)


def _level(text: str) -> tuple[str, str]:
    prefix, equals, level = text.partition("=")
    if not (prefix and equals):
        raise ExportError(f"--level {text!r} is not PREFIX=LEVEL, as in conv1=low")
    return prefix, level


def _numbers(text: str, kind: type = float) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ExportError(f"{text!r} are not numbers separated by commas") from None


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ExportError(f"--set {text!r} is not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
