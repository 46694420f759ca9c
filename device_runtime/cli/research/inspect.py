"""`device-runtime inspect`: shows what is in a bundle."""

import argparse
from collections.abc import Mapping, Sequence

import msgspec
from tabulate import tabulate

from device_runtime.cli.options import add_format, as_json
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.inputs import TextInput, WindowInput
from device_runtime.models.bundles.manifest import Manifest, Setting, Tunable
from device_runtime.models.bundles.names import LEVELS


class BundleFigures(msgspec.Struct, frozen=True):
    """The figures of a bundle, as `--format json` prints them."""

    sha256: str
    bytes: int
    num_parameters: dict[Tunable, int]
    manifest: Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("bundle", help="Show this bundle: a folder, a zip, or the name of a shipped one.")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the bundle. Raises BundleError."""
    bundle = Bundle.open(find_bundle(args.bundle))
    manifest = bundle.manifest
    counts = {tunable: manifest.num_parameters(tunable) for tunable in manifest.sets}
    figures = BundleFigures(bundle.sha256, len(bundle.packed()), counts, manifest)
    whole = as_json(figures)
    print(whole if args.format == "json" else _text(figures))
    return 0


def _text(figures: BundleFigures) -> str:
    manifest = figures.manifest
    shape = "x".join(str(n) for n in manifest.input.shape)
    counts = figures.num_parameters
    trained = ", ".join(f"{_with_settings(s, manifest.sets[s])} {counts[s]}" for s in manifest.sets)
    lines = [
        f"{manifest.name}: {figures.bytes / 1000:.0f} KB, sha256 {figures.sha256}",
        f"input {shape}{_kind(manifest)}, {manifest.head.features} features, {len(manifest.labels)} labels"
        + ("" if manifest.target.is_cross_entropy else f", loss {manifest.target.description}"),
        f"made with {manifest.producer}{_source(manifest)}, weights stored as {manifest.stored_as}"
        + (", pre-trained" if manifest.pretrained else ""),
        f"trainable parameters: {trained}",
    ]
    return "\n\n".join(["\n".join(lines), _parameter_table(manifest), _graph_table(manifest)])


def _kind(manifest: Manifest) -> str:
    vocabulary = manifest.input.vocabulary
    text, window = manifest.input.text, manifest.input.window
    if isinstance(window, WindowInput):
        return f" {window.description(manifest.input.shape[1])}"
    description = f", {text.description(manifest.input.shape[0])}" if isinstance(text, TextInput) else ""
    return "" if vocabulary is None else f" token ids from 0 to {vocabulary - 1}{description}"


def _source(manifest: Manifest) -> str:
    source = manifest.source
    return f" from {_with_settings(source.network, source.settings)}" if source else ""


def _with_settings(name: str, settings: Mapping[str, Setting]) -> str:
    chosen = ", ".join(f"{setting} {value}" for setting, value in settings.items())
    return f"{name} ({chosen})" if chosen else name


def _parameter_table(manifest: Manifest) -> str:
    rows: list[Sequence[object]] = []
    for level in LEVELS:
        for parameter in (p for p in manifest.parameters if p.level == level):
            shape = "x".join(str(n) for n in parameter.shape)
            rows.append((level, parameter.name, shape, parameter.spec.size, " ".join(parameter.sets)))
    return tabulate(rows, ("level", "parameter", "shape", "values", "trained in"))


def _graph_table(manifest: Manifest) -> str:
    rows = [
        (
            name,
            f"{graph.bytes / 1000:.1f}",
            f"{graph.flops / 1e6:.2f}",
            f"{graph.fixed_bytes / 1000:.1f}",
            f"{graph.bytes_per_sample / 1000:.1f}",
            graph.sha256[:12],
        )
        for name, graph in manifest.graphs.items()
    ]
    heads = ("graph", "KB", "MFLOP/sample", "activations KB", "+ KB/sample", "sha256")
    return tabulate(rows, heads, disable_numparse=True, stralign="right")
