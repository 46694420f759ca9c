"""`device-runtime export`: a torch module becomes a bundle."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from models import torch_networks as networks
from models.errors import ExportError, one_line
from models.manifest import LARGEST, LEVELS, PRECISIONS, TRAINING, TUNABLE_SETS, InputSpec, Source

from .factory import build, once, settings

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
    add(
        "--input",
        required=True,
        metavar="C,H,W",
        help="shape of one sample, channels first; of token ids, how many",
    )
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
    add("--output", action="append", default=[], metavar="LEVEL=NAME", help="submodule at the end of a level")
    add("--vocabulary", type=int, metavar="N", help="the input is token ids from 0 to N - 1")
    add_graph_arguments(parser)


def add_graph_arguments(parser: argparse.ArgumentParser) -> None:
    """Which graphs the bundle is to have."""
    add = parser.add_argument
    add(
        "--tunable",
        action="append",
        default=[],
        metavar="SET[:NAME=VALUE,..]",
        help=f"{', '.join(TUNABLE_SETS)}, as in lora:rank=8; may be repeated (default: all, mid, head)",
    )
    add("--objective", action="append", default=[], choices=TRAINING, help="may be repeated (default: train)")
    add("--features", action="append", default=[], choices=LEVELS[:-1], help="give the level's feature map")
    add(
        "--batchnorm",
        choices=("frozen", "training"),
        default="frozen",
        help="training: batch statistics where the layer itself is trained (default: frozen)",
    )
    add("--precision", action="append", default=[], choices=PRECISIONS[1:], help="add a forward graph of it")
    add(
        "--stored-as", choices=("float32", "float16"), default="float32", help="precision of the weights file"
    )
    add("--ort-training", action="store_true", help="add training graphs of onnxruntime-training")


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
    trained = ", ".join(f"{name} {bundle.manifest.num_parameters(name)}" for name in bundle.manifest.sets)
    size = f"{len(bundle.packed()) / 1000:.0f} KB"
    print(f"\n{args.out}: {size}; values trained: {trained}; sha256 {bundle.sha256}")
    return 0


def spec(args: argparse.Namespace) -> "ExportSpec":
    """What the arguments say about the bundle. Raises ExportError."""
    from models.torch_export import ExportSpec

    try:
        shape = _numbers(args.input, int)
        kind: Any = "float32" if args.vocabulary is None else "int64"
        means, deviations = _numbers(args.mean), _numbers(args.std)
        given = InputSpec(shape, args.scale, means, deviations, kind, args.vocabulary)
    except ValueError as error:
        raise ExportError(one_line(error)) from error
    if not all(1 <= size <= LARGEST for size in (*shape, 1 if args.vocabulary is None else args.vocabulary)):
        raise ExportError(f"--input {args.input} or --vocabulary holds a size that is not 1 to {LARGEST}")
    return ExportSpec(
        name=args.name or args.out.resolve().name,
        input=given,
        labels=tuple(args.labels.split(",")),
        head=args.head,
        levels=once(_level(item) for item in args.level) or None,
        outputs=once(_level(item) for item in args.output) or None,
        sets=once(_tunable(item) for item in args.tunable) or {"all": {}, "mid": {}, "head": {}},
        objectives=tuple(dict.fromkeys(args.objective)) or ("train",),
        features=tuple(dict.fromkeys(args.features)),
        batchnorm=args.batchnorm,
        precisions=tuple(dict.fromkeys(args.precision)),
        stored_as=args.stored_as,
        ort_training=args.ort_training,
        source=_source(args),
    )


def _source(args: argparse.Namespace) -> Source | None:
    """What the torch engine builds the network from. Files stay behind: their values are in the weights.

    None where the feature maps are not those that the network itself names.
    """
    if ":" in args.factory or args.output:
        return None
    given = settings(args.set)
    return Source(args.factory, {name: given[name] for name in given if name not in networks.FILES})


def _tunable(text: str) -> tuple[str, dict[str, Any]]:
    name, colon, rest = text.partition(":")
    return name, settings(rest.split(",") if colon else [])


def _level(text: str) -> tuple[str, str]:
    prefix, equals, level = text.partition("=")
    if not (prefix and equals and level):
        raise ExportError(f"{text!r} is not NAME=VALUE, as in conv1=low")
    return prefix, level


def _numbers(text: str, kind: type = float) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ExportError(f"{text!r} are not numbers separated by commas") from None
