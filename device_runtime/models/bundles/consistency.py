"""Whether the parts of a manifest fit each other; what one part may say is up to its type."""

from collections.abc import Iterable, Mapping

from device_runtime.models.errors import BundleError

from .archive import is_plain
from .inputs import Text
from .manifest import LEVELS, ORT_TRAINING, PRECISIONS, TRAINING, Graph, Manifest
from .manifest_records import File
from .tensors import TensorSpec


def check_manifest(manifest: Manifest) -> None:
    """Raises BundleError, naming the bundle and the two things that do not fit."""
    try:
        _check_names(manifest)
        _check_graphs(manifest)
        _check_head(manifest, {spec.name: spec for spec in manifest.stored()})
    except BundleError as error:
        raise BundleError(f"manifest of bundle {manifest.name}: {error}") from None


def _check_names(manifest: Manifest) -> None:
    text = manifest.input.text if isinstance(manifest.input.text, Text) else None
    entries: list[File | Graph] = [manifest.weights, *manifest.graphs.values()]
    entries += [text.tokenizer] if text else []
    files = [entry.file for entry in entries]
    for file in files:
        if not is_plain(file):
            raise BundleError(f"names the file {file!r}, expected a plain file name")
    said = (text.template, *text.words) if text else ()
    names = (manifest.name, *manifest.labels, *said, *(parameter.name for parameter in manifest.parameters))
    if strange := [name for name in names if not name.isprintable()]:
        raise BundleError(f"names {strange[0]!r}, expected printable characters")
    _check_once("file", files)
    _check_once("label", manifest.labels)
    if text and text.words and len(text.words) != len(manifest.labels):
        raise BundleError(f"has {len(text.words)} words for {len(manifest.labels)} labels")
    _check_once("parameter", (parameter.name for parameter in manifest.parameters))


def _check_once(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BundleError(f"{what} {name!r} occurs twice")
        seen.add(name)


def _check_graphs(manifest: Manifest) -> None:
    if "forward" not in manifest.graphs:
        raise BundleError("lists no graph 'forward'")
    forward = ("forward", *(f"forward.{precision}" for precision in PRECISIONS[1:]))
    takes = {name: set[str]() for name in (*forward, *(f"features.{level}" for level in LEVELS[:-1]))}
    for tunable in manifest.sets:
        names = set(manifest.names(tunable))
        takes |= {f"{kind}.{tunable}": names for kind in ("loss", *TRAINING, ORT_TRAINING)}
    for parameter in manifest.parameters:
        if unknown := sorted(set(parameter.sets) - set(manifest.sets)):
            raise BundleError(f"parameter {parameter.name} is in set {unknown[0]}, which is not listed")
        if parameter.sets and parameter.dtype != "float32":
            raise BundleError(f"parameter {parameter.name} of {parameter.dtype} is in a tunable set")
    for name, graph in manifest.graphs.items():
        if name not in takes:
            raise BundleError(f"graph {name!r} is none of {', '.join(takes)}")
        kind, _, level = name.partition(".")
        if kind == "features" and level not in manifest.features:
            raise BundleError(f"graph {name} has no shape; features has {', '.join(manifest.features)}")
        _check_inputs(manifest, name)
        if differing := sorted(takes[name] ^ set(graph.trainable)):
            raise BundleError(f"graph {name} and its tunable set differ in {differing[0]}")


def _check_inputs(manifest: Manifest, name: str) -> None:
    graph = manifest.graphs[name]
    never_trained = {parameter.name for parameter in manifest.parameters if not parameter.sets}
    stored = {spec.name: spec for spec in manifest.stored()}
    derived_from = {derived.parameter for derived in graph.derived}
    if unknown := sorted({*graph.trainable, *graph.frozen, *graph.statistics, *derived_from} - stored.keys()):
        raise BundleError(f"graph {name} takes {unknown[0]}, which is no parameter")
    if trained := sorted(set(graph.statistics) - never_trained):
        raise BundleError(f"graph {name} has {trained[0]} as a statistic, which is in a tunable set")
    for derived in graph.derived:
        spec = stored[derived.parameter]
        if spec.dtype != "float32" or len(spec.shape) <= 1:
            raise BundleError(f"graph {name} derives {derived.name} from {spec.dtype} of shape {spec.shape}")
    _check_once("initialiser", (*graph.frozen, *(derived.name for derived in graph.derived)))
    if other := sorted(n for n in graph.statistics if stored[n].dtype != "float32"):
        raise BundleError(f"graph {name} has {other[0]} of {stored[other[0]].dtype} as a statistic")
    _check_once("statistic", graph.statistics)
    _check_once("input", ("x", "y", *(extra.name for extra in graph.extras), *stored))


def _check_head(manifest: Manifest, stored: Mapping[str, TensorSpec]) -> None:
    head, labels = manifest.head, len(manifest.labels)
    shapes = {head.weight: (labels, head.features)} | ({head.bias: (labels,)} if head.bias else {})
    for name, shape in shapes.items():
        if name not in stored or stored[name].shape != shape:
            found = stored[name].shape if name in stored else "missing"
            raise BundleError(f"head parameter {name} is {found}, expected {shape}")
    if manifest.features.get("head", (head.features,)) != (head.features,):
        raise BundleError(
            f"features of the head are {manifest.features['head']}, expected ({head.features},)"
        )
