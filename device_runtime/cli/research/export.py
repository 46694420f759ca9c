"""`device-runtime export`: writes a torch module as a bundle."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.models import networks
from device_runtime.models.bundles.bundle import Bundle, content_of, write_part
from device_runtime.models.bundles.inputs import HIGHEST_RATE, LARGEST, InputSpec, WindowInput
from device_runtime.models.bundles.manifest import TRAINING, Source
from device_runtime.models.bundles.names import LEVELS, PRECISIONS, TUNABLE_SETS
from device_runtime.models.bundles.targets import LOSSES, METRICS, NORMAL, TargetSpec, targets_of
from device_runtime.models.data.reading import inputs, target_values
from device_runtime.models.errors import ExportError, ModelError, one_line
from device_runtime.models.export.network_factory import build, settings, unique_pairs

from .export_texts import TextReading, add_text_arguments, folder_settings, reading

if TYPE_CHECKING:
    from device_runtime.models.export.export import ExportSpec

NONE = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # --mean -0.5,1,2: argparse knows -0.5 alone
    add = parser.add_argument
    add(
        "factory",
        help=f"Export one of {', '.join(networks.NETWORKS)}; or package.module:name or FILE.py:name of a "
        "factory.",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Give the factory this argument; may be repeated.",
    )
    add(
        "--input",
        required=True,
        metavar="C,H,W",
        help="Set the shape of one sample, channels first; of token ids, how many.",
    )
    add(
        "--labels",
        metavar="A,B,..",
        help="Name the classes, in the order of the logits; or what the network predicts, as --loss says.",
    )
    add("--out", required=True, type=Path, help="Write the bundle into this folder.")
    add("--overwrite", action="store_true", help="Replace a bundle that is in that folder.")
    add("--name", help="Name the bundle (default: as the folder).")
    add(
        "--weights",
        type=Path,
        help="Read weights: safetensors, npz, torch state dict, or a transformers folder (default: as made).",
    )
    add("--new-head", action="store_true", help="Take the weights without the head, for other labels.")
    add(
        "--pretrained",
        action="store_true",
        help="Say that the factory's weights are trained, as --weights does: devices take smaller steps.",
    )
    add("--seed", type=int, default=0, help="Draw random weights by this seed (default: 0).")
    _add_scaling(parser)
    _add_parts(parser)
    _add_windows(parser)
    add_text_arguments(parser)
    add_loss_arguments(parser)
    add_graph_arguments(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--scale",
        type=float,
        default=1.0,
        help="Multiply raw values by this, before mean and std (default: 1).",
    )
    add(
        "--mean",
        default="0",
        metavar="M,..",
        help="Subtract this, one value or one per channel (default: 0).",
    )
    add(
        "--std",
        default="1",
        metavar="S,..",
        help="Divide by this, one value or one per channel (default: 1).",
    )
    add(
        "--standardise",
        type=Path,
        metavar="PATH",
        help="Set --mean and --std, and those of targets, by these samples, given as to join --data.",
    )


def _add_parts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--head",
        metavar="NAME",
        help="Take this nn.Linear as the head, which gives the logits (default: the last).",
    )
    add(
        "--level",
        action="append",
        default=[],
        metavar="PREFIX=LEVEL",
        help="Put parameters of this prefix at level low, mid, up or head; may be repeated.",
    )
    add(
        "--output",
        action="append",
        default=[],
        metavar="LEVEL=NAME",
        help="Name the submodule at the end of a level; may be repeated.",
    )


def _add_windows(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--vocabulary", type=int, metavar="N", help="Take token ids from 0 to N - 1 as input.")
    add(
        "--window-step",
        type=int,
        metavar="N",
        help="Cut recordings into windows, one every N time steps; --input is then CHANNELS,LENGTH.",
    )
    add(
        "--columns",
        default="",
        metavar="A,B,..",
        help="Take these columns of recordings as the channels, by name (default: all but the labels).",
    )
    add(
        "--horizon",
        type=int,
        metavar="N",
        help="Forecast: a window's targets are N time steps behind its end (default: at its last step).",
    )
    add(
        "--rate",
        type=float,
        metavar="HZ",
        help="Say that recordings have so many time steps a second; phones then record at this rate.",
    )


def add_loss_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the loss and its targets."""
    add = parser.add_argument
    add(
        "--loss",
        default="cross-entropy",
        metavar="LOSS",
        help=f"Train with {', '.join(LOSSES)}; or FILE.py:FUNCTION, of (outputs, targets) in torch "
        "(default: cross-entropy).",
    )
    add(
        "--targets",
        default="",
        choices=tuple(METRICS),
        help="Compare outputs with class labels, values, 0/1 flags or the input (default: by the loss).",
    )
    add("--target-columns", metavar="A,B,..", help="Name the columns of targets (default: as --labels).")
    add(
        "--class-weights",
        metavar="W,..",
        help="Multiply cross-entropy by a weight for each class, in the order of --labels (default: 1).",
    )
    add("--delta", type=float, help="Set where loss huber becomes a straight line (default: 1).")
    add(
        "--target-mean",
        metavar="M,..",
        help="Subtract this from targets, one value or one per column (default: 0, or by --standardise).",
    )
    add(
        "--target-std",
        metavar="S,..",
        help="Divide targets by this, one value or one per column (default: 1, or by --standardise).",
    )
    add("--quantile", type=float, help="Call errors above this quantile anomalies (default: 0.99).")


def add_graph_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of which graphs the bundle has."""
    add = parser.add_argument
    add(
        "--tunable",
        action="append",
        default=[],
        metavar="SET[:NAME=VALUE,..]",
        help=f"Add a tunable set: {', '.join(TUNABLE_SETS)}, as lora:rank=8 (default: all, mid, head).",
    )
    add(
        "--objective",
        action="append",
        default=[],
        choices=(*TRAINING, NONE),
        help="Make training graphs for this objective; may be repeated, and none suits zeroth-order alone "
        "(default: train).",
    )
    add(
        "--features",
        action="append",
        default=[],
        choices=LEVELS[:-1],
        help="Give the feature map of this level; may be repeated.",
    )
    add(
        "--batchnorm",
        choices=("frozen", "training"),
        default="frozen",
        help="Freeze batch statistics, or train them with their layer (default: frozen).",
    )
    add(
        "--precision",
        action="append",
        default=[],
        choices=PRECISIONS[1:],
        help="Add a forward graph of this precision; may be repeated.",
    )
    add(
        "--stored-as",
        choices=("float32", "float16"),
        default="float32",
        help="Write the weights in this precision (default: float32).",
    )
    add(
        "--scaled-features",
        action="store_true",
        help="Multiply features by a scale each before the head, which rounds of class means set.",
    )
    add("--ort-training", action="store_true", help="Add training graphs of onnxruntime-training.")
    add(
        "--narrower",
        default="0.5,0.25",
        metavar="SHARE,..",
        help="Add graphs of narrower parts of the network, of these shares of its width, where it has one; "
        "none: no parts (default: 0.5,0.25).",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the bundle and prints what is in it. Raises ModelError."""
    check_free(args.out, args.overwrite)
    texts, network_settings = texts_and_settings(args)
    module = build(args, network_settings)  # before the next import: without torch it says what to install
    from device_runtime.models.export.export import CheckedGraph, ExportWatch, export
    from device_runtime.models.export.progress import progress_line

    checked: list[CheckedGraph] = []
    whole = spec(args, texts, network_settings)
    with progress_line(whole.name) as begin:
        bundle = export(module, whole, args.out, ExportWatch(begin, checked.append))
    narrower = _add_parts_of(bundle, whole, args, network_settings)
    rows = [(g.name, f"{g.bytes / 1000:.1f}", f"{g.worst:.0e}") for g in checked]
    print(tabulate(rows, ("graph", "KB", "off torch by"), disable_numparse=True, stralign="right"))
    trained = ", ".join(f"{name} {bundle.manifest.num_parameters(name)}" for name in bundle.manifest.sets)
    size = f"{len(bundle.packed()) / 1000:.0f} KB"
    print(f"\n{args.out}: {size}; values trained: {trained}; sha256 {bundle.sha256}")
    print("\n".join(narrower))
    return 0


def shares_of(args: argparse.Namespace) -> tuple[float, ...]:
    """The shares of its width that narrower parts have. Raises ExportError."""
    try:
        shares = () if args.narrower == NONE else _numbers(args.narrower)
    except ValueError:
        shares = (0.0,)
    if not all(0 < share < 1 for share in shares):
        raise ExportError(f"--narrower is {args.narrower}, expected shares between 0 and 1, as in 0.5,0.25")
    return shares


def _add_parts_of(
    bundle: Bundle, spec: "ExportSpec", args: argparse.Namespace, network_settings: Mapping[str, Any]
) -> list[str]:
    """Adds narrower parts of the network to a bundle; a line for each, or why there is none."""
    from device_runtime.models.export.export import ExportWatch, export
    from device_runtime.models.export.progress import progress_line

    shares = shares_of(args)
    width = None if ":" in args.factory else networks.default_of(args.factory, "width")
    if shares and (width is None or "all" not in spec.sets or "train" not in spec.objectives):
        lacks = "setting width" if width is None else "graph train.all"
        return [f"it has no narrower parts: {args.factory} has no {lacks}"]
    whole, lines = network_settings.get("width", width), []
    for share in shares:
        plain = argparse.Namespace(**{**vars(args), "weights": None, "new_head": False})
        part_settings = {**network_settings, "width": share * whole}
        narrow = replace(
            spec, name=f"width-{share:g}", sets={"all": {}}, objectives=("train",), features=(),
            precisions=(), ort_training=False, pretrained=bundle.manifest.pretrained is True,
            source=_source(args, part_settings),
        )  # fmt: skip
        try:
            with TemporaryDirectory() as folder, progress_line(narrow.name) as begin:
                module, place = build(plain, part_settings), Path(folder) / "part"
                part = write_part(bundle, export(module, narrow, place, ExportWatch(begin)))
        except ModelError as error:
            lines.append(f"it has no part {narrow.name}: {one_line(error)}")
            continue
        graphs = sum(graph.bytes for graph in part.manifest.graphs.values()) / 1000
        values = part.manifest.num_parameters()
        lines.append(f"part {narrow.name}: {graphs:.0f} KB of graphs, trains {values} values")
    return lines


def check_free(folder: Path, overwrite: bool) -> None:
    """Raise ExportError if the folder is not free, unless it has a bundle that may be overwritten."""
    content = content_of(folder)
    if content == "bundle" and not overwrite:
        raise ExportError(f"{folder} is a bundle already: --overwrite replaces it")
    if content == "other":
        raise ExportError(f"{folder} exists and is no bundle: give another --out")


def texts_and_settings(args: argparse.Namespace) -> tuple[TextReading | None, dict[str, Any]]:
    """The settings for texts, if any, and all settings of the network. Raises ExportError.

    --set overrides the sizes in the folder of --weights, and these override the settings that follow from the
    texts.
    """
    network_settings = {**folder_settings(args), **settings(args.set)}
    texts = reading(args, network_settings)
    return texts, {**(texts.settings if texts else {}), **network_settings}


def spec(
    args: argparse.Namespace,
    texts: TextReading | None = None,
    network_settings: Mapping[str, Any] | None = None,
) -> "ExportSpec":
    """The specification of the bundle; `network_settings` are the network's settings. Raises ExportError."""
    from device_runtime.models.export.export import ExportSpec

    vocabulary = texts.vocabulary if texts else args.vocabulary
    target, own, labels = loss_and_labels(args)
    try:
        shape = _numbers(args.input, int)
        kind: Any = "float32" if vocabulary is None else "int64"
        means, deviations = _numbers(args.mean), _numbers(args.std)
        input_spec = InputSpec(
            shape, args.scale, means, deviations, kind, vocabulary,
            texts.text if texts else msgspec.UNSET, _window(args),
        )  # fmt: skip
        if args.standardise:
            input_spec, target = standardised(input_spec, target, args.standardise, labels)
    except ValueError as error:
        raise ExportError(one_line(error)) from error
    if not all(1 <= size <= LARGEST for size in (*shape, 1 if vocabulary is None else vocabulary)):
        raise ExportError(f"--input {args.input} or --vocabulary holds a size that is not 1 to {LARGEST}")
    return ExportSpec(
        name=args.name or args.out.resolve().name,
        input=input_spec,
        labels=labels,
        head=args.head,
        levels=unique_pairs(_level(item) for item in args.level) or None,
        outputs=unique_pairs(_level(item) for item in args.output) or None,
        sets=unique_pairs(_tunable(item) for item in args.tunable) or {"all": {}, "mid": {}, "head": {}},
        objectives=tuple(name for name in dict.fromkeys(args.objective) if name != NONE)
        if args.objective
        else ("train",),
        features=tuple(dict.fromkeys(args.features)),
        batchnorm=args.batchnorm,
        precisions=tuple(dict.fromkeys(args.precision)),
        stored_as=args.stored_as,
        pretrained=args.pretrained or args.weights is not None,
        ort_training=args.ort_training,
        scaled=args.scaled_features,
        loss=target,
        own_loss=own,
        source=_source(args, settings(args.set) if network_settings is None else network_settings),
        tokenizer=texts.tokenizer if texts else None,
    )


def _window(args: argparse.Namespace) -> WindowInput | msgspec.UnsetType:
    columns = tuple(args.columns.split(",")) if args.columns else ()
    if args.window_step is None:
        if columns:
            raise ExportError("--columns are those of recordings: give --window-step, too")
        if args.horizon is not None:
            raise ExportError("--horizon is of recordings: give --window-step, too")
        if args.rate is not None:
            raise ExportError("--rate is of recordings: give --window-step, too")
        return msgspec.UNSET
    if args.window_step < 1:
        raise ExportError(f"--window-step is {args.window_step}, expected 1 or more")
    if args.rate is not None and not 0 < args.rate <= HIGHEST_RATE:
        raise ExportError(f"--rate is {args.rate:g}, expected more than 0 and at most {HIGHEST_RATE:g} hertz")
    rate = msgspec.UNSET if args.rate is None else args.rate
    if args.horizon is None:
        return WindowInput(args.window_step, columns, rate=rate)
    if args.horizon < 1:
        raise ExportError(f"--horizon is {args.horizon}, expected 1 or more time steps ahead")
    if args.loss == "cross-entropy" or args.targets == "input":
        raise ExportError("--horizon is for targets that are numbers: give --loss mse, for example")
    return WindowInput(args.window_step, columns, args.horizon, rate)


def loss_and_labels(args: argparse.Namespace) -> tuple[TargetSpec, Any, tuple[str, ...]]:
    """The targets, the function of an own loss or None, and the labels. Raises ExportError."""
    own, name = None, args.loss
    if ":" in name:
        from device_runtime.models.torch_modules.functional_module import loss_from_file

        own, name = loss_from_file(name), name.rpartition(":")[2]
    if args.labels is None and args.targets != "input":
        raise ExportError("--labels is missing: name the classes, or what the network predicts")
    labels = NORMAL if args.labels is None else tuple(args.labels.split(","))
    settings = {
        "columns": args.target_columns and args.target_columns.split(","),
        "delta": args.delta,
        "class_weights": args.class_weights and _numbers(args.class_weights),
        "mean": args.target_mean and _numbers(args.target_mean),
        "std": args.target_std and _numbers(args.target_std),
        "quantile": args.quantile,
    }
    values = {setting: value for setting, value in settings.items() if value is not None}
    try:
        return targets_of(name, labels, args.targets, own is not None, **values), own, labels
    except ValueError as error:
        raise ExportError(one_line(error)) from error


def standardised(
    input_spec: InputSpec, target: TargetSpec, place: Path, labels: Sequence[str]
) -> tuple[InputSpec, TargetSpec]:
    """The input with the mean and standard deviation of each channel of these samples, after `scale`.

    Targets that are values get those of each column, unless they have some. What is constant is divided by 1.
    Raises ExportError, DataError.
    """
    if input_spec.vocabulary is not None or (input_spec.mean, input_spec.std) != ((0.0,), (1.0,)):
        raise ExportError("--standardise sets --mean and --std of values: give neither, and no token ids")
    x = input_spec.prepare(inputs(place, input_spec, labels, target=target)).astype(np.float64)
    if not (len(x) and np.isfinite(x).all()):
        what = "values that are not finite" if len(x) else "no samples"
        raise ExportError(f"--standardise {place}: it has {what}, expected samples with finite values")
    input_spec = msgspec.structs.replace(input_spec, **_mean_and_std(x, (0, *range(2, x.ndim))))
    if target.compared == "values" and (target.mean, target.std) == ((0.0,), (1.0,)):
        target = msgspec.structs.replace(
            target, **_mean_and_std(target_values(place, input_spec, target), (0,))
        )
    return input_spec, target


def _mean_and_std(values: NDArray[np.float64], axes: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
    means, deviations = values.mean(axes), values.std(axes)
    deviations[deviations == 0] = 1.0
    return {"mean": tuple(means.tolist()), "std": tuple(deviations.tolist())}


def _source(args: argparse.Namespace, network_settings: Mapping[str, Any]) -> Source | None:
    """The network and settings from which the torch engine builds it.

    Settings that name files are omitted: their values are in the weights. None for a factory of the user's,
    or with --output, whose feature maps the network itself does not name.
    """
    if ":" in args.factory or args.output:
        return None
    return Source(
        args.factory,
        {name: network_settings[name] for name in network_settings if name not in networks.FILES},
    )


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
