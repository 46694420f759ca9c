"""`device-runtime export`: a torch module becomes a bundle."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tabulate import tabulate

from models import torch_networks as networks
from models.errors import ExportError, one_line
from models.inputs import InputSpec
from models.manifest import LEVELS, PRECISIONS, TRAINING, TUNABLE_SETS, Source
from models.records import LARGEST

from .factory import build, once, settings
from .text_options import Reading, add_text_arguments, folder_settings, reading

if TYPE_CHECKING:
    from models.torch_export import ExportSpec

NONE = "none"
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
        help="safetensors, npz or torch state dict, or a folder of transformers (default: as they are made)",
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
    add_text_arguments(parser)
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
    add(
        "--objective",
        action="append",
        default=[],
        choices=(*TRAINING, NONE),
        help="may be repeated (default: train); none: no training graphs, for zeroth-order updates alone",
    )
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
    add(
        "--scaled-features",
        action="store_true",
        help="multiply features by a scale each before the head, which rounds of class means set",
    )
    add("--ort-training", action="store_true", help="add training graphs of onnxruntime-training")


def run(args: argparse.Namespace) -> int:
    """Writes the bundle and prints what is in it. Raises ModelError."""
    texts, given = texts_and_settings(args)
    module = build(args, given)  # first: it says what to install where torch is missing
    from models.torch_export import Checked, export

    checked: list[Checked] = []

    def report(graph: Checked) -> None:
        checked.append(graph)
        print(f"{graph.name} computes what torch computes", file=sys.stderr)

    bundle = export(module, spec(args, texts, given), args.out, report)
    rows = [(g.name, f"{g.bytes / 1000:.1f}", f"{g.worst:.0e}") for g in checked]
    print(tabulate(rows, ("graph", "KB", "off torch by"), disable_numparse=True, stralign="right"))
    trained = ", ".join(f"{name} {bundle.manifest.num_parameters(name)}" for name in bundle.manifest.sets)
    size = f"{len(bundle.packed()) / 1000:.0f} KB"
    print(f"\n{args.out}: {size}; values trained: {trained}; sha256 {bundle.sha256}")
    return 0


def texts_and_settings(args: argparse.Namespace) -> tuple[Reading | None, dict[str, Any]]:
    """What is said of texts, and all settings of the network: what is said beats a folder's sizes, and these
    what follows from the texts. Raises ExportError.
    """
    given = {**folder_settings(args), **settings(args.set)}
    texts = reading(args, given)
    return texts, {**(texts.settings if texts else {}), **given}


def spec(
    args: argparse.Namespace, texts: Reading | None = None, given: Mapping[str, Any] | None = None
) -> "ExportSpec":
    """What the arguments say about the bundle, with `given` as the network's settings. Raises ExportError."""
    from models.torch_export import ExportSpec

    vocabulary = texts.vocabulary if texts else args.vocabulary
    try:
        shape = _numbers(args.input, int)
        kind: Any = "float32" if vocabulary is None else "int64"
        means, deviations = _numbers(args.mean), _numbers(args.std)
        taken = InputSpec(
            shape, args.scale, means, deviations, kind, vocabulary, texts.text if texts else msgspec.UNSET
        )
    except ValueError as error:
        raise ExportError(one_line(error)) from error
    if not all(1 <= size <= LARGEST for size in (*shape, 1 if vocabulary is None else vocabulary)):
        raise ExportError(f"--input {args.input} or --vocabulary holds a size that is not 1 to {LARGEST}")
    return ExportSpec(
        name=args.name or args.out.resolve().name,
        input=taken,
        labels=tuple(args.labels.split(",")),
        head=args.head,
        levels=once(_level(item) for item in args.level) or None,
        outputs=once(_level(item) for item in args.output) or None,
        sets=once(_tunable(item) for item in args.tunable) or {"all": {}, "mid": {}, "head": {}},
        objectives=tuple(name for name in dict.fromkeys(args.objective) if name != NONE)
        if args.objective
        else ("train",),
        features=tuple(dict.fromkeys(args.features)),
        batchnorm=args.batchnorm,
        precisions=tuple(dict.fromkeys(args.precision)),
        stored_as=args.stored_as,
        ort_training=args.ort_training,
        scaled=args.scaled_features,
        source=_source(args, settings(args.set) if given is None else given),
        tokenizer=texts.tokenizer if texts else None,
    )


def _source(args: argparse.Namespace, given: Mapping[str, Any]) -> Source | None:
    """What the torch engine builds the network from. Files stay behind: their values are in the weights.

    None where the feature maps are not those that the network itself names.
    """
    if ":" in args.factory or args.output:
        return None
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
