"""A bundle on disk: manifest, weights and graphs in a folder or zip, verified when it is opened."""

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace
from numpy.typing import NDArray

from device_runtime.content import content
from device_runtime.models.errors import BundleError, ModelError, one_line
from device_runtime.models.text import file as tokenizers

from . import manifest as manifests
from . import tensors
from .archive import FolderFiles, is_plain, pack_files, read_zip, unpack_files
from .inputs import File, TextInput, Texts
from .manifest import ORT_TRAINING, TRAINING, Graph, Manifest
from .names import LEVELS, PRECISIONS
from .tensors import TensorSpec
from .weights import Slices

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
PARTS = "parts"
"""The folder, in a bundle's, of narrower parts of its network: bundles without a weights file."""


@dataclass(frozen=True)
class Bundle:
    """A verified bundle. Each access reads and verifies the file again."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Opens a folder or a zip.

        Raises BundleError, one line, for a missing or damaged file, another format, or weights or graphs
        that do not fit the parameter table.
        """
        path = Path(path)
        return cls(path, _checked(_files(path), path))

    def weights(self) -> dict[str, NDArray[Any]]:
        """Every tensor of the weights file, by name; a new copy for each call."""
        return _weights(self.manifest, _files(self.path))

    def entry(self, name: str) -> Graph:
        """The manifest's entry of a graph. Raises BundleError for an unknown name."""
        if name not in self.manifest.graphs:
            names = ", ".join(self.manifest.graphs)
            raise BundleError(f"bundle {self.manifest.name} has no graph {name!r}; it has {names}")
        return self.manifest.graphs[name]

    def graph(self, name: str) -> bytes:
        """The ONNX graph of that name, without weights. Raises BundleError for an unknown name."""
        return _verified(self.manifest, self.entry(name), _files(self.path))

    @cached_property
    def texts(self) -> Texts | None:
        """Turns texts into the bundle's input; None if the input is not text.

        Raises BundleError if the tokenizer does not fit the manifest.
        """
        text = self.manifest.input.text
        if not isinstance(text, TextInput):
            return None
        tokenizer = tokenizers.decode(_verified(self.manifest, text.tokenizer, _files(self.path)))
        vocabulary = self.manifest.input.vocabulary
        if tokenizer.form != text.form or vocabulary is None or tokenizer.size > vocabulary:
            says = f"{text.form} of at most {vocabulary} ids"
            raise BundleError(
                f"{text.tokenizer.file} of bundle {self.manifest.name} is {tokenizer.form} of "
                f"{tokenizer.size} ids, the manifest says {says}"
            )
        return Texts(text, tokenizer.tokenizer(), self.manifest.input.shape[0])

    def parts(self) -> dict[str, "Bundle"]:
        """The narrower parts of the network that are in the bundle's folder, by name, the widest first.

        Raises BundleError, and TensorError for a bundle there that is no part of this one.
        """
        folders = (self.path / PARTS).iterdir() if (self.path / PARTS).is_dir() else ()
        bundles = [Bundle.open(folder) for folder in sorted(folders) if (folder / MANIFEST).is_file()]
        bundles.sort(key=lambda part: -part.manifest.num_parameters())
        return {part.manifest.name: part for part in bundles}

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the canonical zip in hexadecimal: the same for the folder and for its zip."""
        return hashlib.sha256(self.packed()).hexdigest()

    def packed(self) -> bytes:
        """The canonical zip: the manifest and the files that it names, no others of the folder."""
        files = _files(self.path)
        return pack_files({name: files[name] for name in (MANIFEST, *_named(self.manifest))})


def write(
    folder: Path,
    manifest: Manifest,
    weights: tensors.Tensors,
    graphs: Mapping[str, bytes],
    tokenizer: bytes | None = None,
) -> Bundle:
    """Writes a bundle into `folder`, which is created; fills in the hashes and sizes of `manifest`.

    Parts of a bundle that was there are removed.

    graphs: by graph name, the same names as in the manifest. tokenizer: if the input is text, and only then.
    Raises BundleError for parts that do not fit each other, before anything is written, or if `folder`
    cannot be written to.
    """
    if (tokenizer is None) == isinstance(manifest.input.text, TextInput):
        raise BundleError("a tokenizer is given to a bundle whose input is text, and to no other")
    if graphs.keys() != manifest.graphs.keys():
        raise BundleError(f"graphs are {sorted(graphs)}, the manifest lists {sorted(manifest.graphs)}")
    files = {WEIGHTS: tensors.encode(_stored(manifest, weights))}
    files |= {manifest.graphs[name].file: graph for name, graph in graphs.items()}
    if tokenizer is not None:
        files[TOKENIZER] = tokenizer
    files[MANIFEST] = manifests.encode(_with_hashes(manifest, files))
    _checked(files, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PARTS).is_dir():
            shutil.rmtree(folder / PARTS)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise BundleError(f"{folder} cannot be written: {one_line(error)}") from error
    return Bundle.open(folder)


def write_part(main: Bundle, part: Bundle) -> Bundle:
    """Adds a narrower network to a bundle as a part, in place of one of its name.

    Its weights are not written: they are cut out of the main ones when it is opened. Raises TensorError if it
    is no part of the main network, BundleError if the folder cannot be written to.
    """
    files = {graph.file: part.graph(name) for name, graph in part.manifest.graphs.items()}
    manifest = _with_hashes(part.manifest, {**files, WEIGHTS: _cut_weights(main, part.manifest)})
    folder = main.path / PARTS / manifest.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in {**files, MANIFEST: manifests.encode(manifest)}.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise BundleError(f"{folder} cannot be written: {one_line(error)}") from error
    return Bundle.open(folder)


def pack(folder: str | Path) -> bytes:
    """The canonical zip of a bundle; equal bundles give equal bytes on every machine."""
    return Bundle.open(folder).packed()


def unpack(data: bytes, folder: str | Path) -> Bundle:
    """Unpacks a zip into a bundle folder, which must be absent or empty, and opens it.

    Raises BundleError, and leaves nothing behind, if it is not a valid bundle.
    """
    return unpack_files(data, Path(folder), Bundle.open)


def shipped_names() -> tuple[str, ...]:
    """The names of the bundles that come with the package."""
    return tuple(sorted(p.name for p in _shipped().iterdir() if (p / MANIFEST).is_file()))


def shipped_folder(name: str) -> Path:
    """The folder of a bundle that comes with the package. Raises BundleError for an unknown name."""
    if name not in shipped_names():
        raise BundleError(f"no bundle {name!r} comes with this package; {', '.join(shipped_names())} do")
    return _shipped() / name


def find_bundle(name_or_path: str | Path) -> Path:
    """The path of a bundle: that folder or zip if it exists, else a shipped bundle. Raises BundleError."""
    path = Path(name_or_path)
    if path.is_file() or (path / MANIFEST).is_file():
        return path
    if str(name_or_path) in shipped_names():
        return shipped_folder(str(name_or_path))
    names = ", ".join(shipped_names())
    raise BundleError(f"{name_or_path} is neither a bundle folder or zip nor a shipped bundle ({names})")


def content_of(folder: Path) -> Literal["", "bundle", "other"]:
    """The content of a folder that a bundle may be written to: nothing (or no folder), a bundle, or other."""
    if (folder / MANIFEST).is_file():
        return "bundle"
    return "other" if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())) else ""


def _shipped() -> Path:
    return content("models") / "bundles"


class PartFiles(FolderFiles):
    """The files of a narrower part in a bundle's folder, with weights that are cut out of the main ones."""

    def __getitem__(self, name: str) -> bytes:
        if name != WEIGHTS:
            return super().__getitem__(name)
        return _cut_weights(Bundle.open(self.folder.parent.parent), manifests.decode(self[MANIFEST]))

    def __contains__(self, name: object) -> bool:
        return name == WEIGHTS or super().__contains__(name)


def _cut_weights(main: Bundle, part: Manifest) -> bytes:
    """The weights file of a narrower part. Raises TensorError if it is no part of the main network."""
    return tensors.encode(_stored(part, Slices.of(main.manifest, part).cut(main.weights())))


def _stored(manifest: Manifest, weights: tensors.Tensors) -> tensors.Tensors:
    """The weights as the file holds them."""
    return tensors.to_float16(weights) if manifest.stored_as == "float16" else weights


def _files(path: Path) -> Mapping[str, bytes]:
    if path.is_dir():
        is_part = path.parent.name == PARTS and not (path / WEIGHTS).is_file()
        return PartFiles(path) if is_part else FolderFiles(path)
    if path.is_file():
        return read_zip(path.read_bytes(), str(path))
    raise BundleError(f"{path} does not exist; a bundle is a folder or a zip")


def _checked(files: Mapping[str, bytes], path: Path) -> Manifest:
    """The manifest, after checking all of `files` against it. Raises BundleError."""
    if MANIFEST not in files:
        raise BundleError(f"{path} is not a bundle: it has no {MANIFEST}")
    try:
        manifest = manifests.decode(files[MANIFEST])
    except BundleError as error:
        raise BundleError(f"bundle {path}: {error}") from error
    check_manifest(manifest)
    for entry in _named(manifest).values():
        _verified(manifest, entry, files)
    _weights(manifest, files)
    return manifest


def _named(manifest: Manifest) -> dict[str, File | Graph]:
    """The manifest's entry of every other file, by file name."""
    text = manifest.input.text
    entries: list[File | Graph] = [manifest.weights, *manifest.graphs.values()]
    entries += [text.tokenizer] if isinstance(text, TextInput) else []
    return {entry.file: entry for entry in entries}


def _verified(manifest: Manifest, entry: File | Graph, files: Mapping[str, bytes]) -> bytes:
    where = f"{entry.file} of bundle {manifest.name}"
    if entry.file not in files:
        raise BundleError(f"{where} is missing; fetch the bundle again")
    data = files[entry.file]
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        says = f"sha256 is {digest[:8]}.., the manifest says {entry.sha256[:8]}.."
        raise BundleError(f"{where} is damaged: {says}; fetch the bundle again")
    if len(data) != entry.bytes:
        raise BundleError(f"{where} has {len(data)} bytes, the manifest says {entry.bytes}")
    return data


def _weights(manifest: Manifest, files: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    data = _verified(manifest, manifest.weights, files)
    try:
        weights = tensors.decode(data)
        if manifest.stored_as == "float16":
            weights = tensors.to_float32(weights)
        tensors.check(weights, manifest.stored())
    except ModelError as error:
        raise BundleError(f"{manifest.weights.file} of bundle {manifest.name}: {error}") from error
    return weights


def _with_hashes(manifest: Manifest, data: Mapping[str, bytes]) -> Manifest:
    def seal(name: str) -> dict[str, Any]:
        return {"sha256": hashlib.sha256(data[name]).hexdigest(), "bytes": len(data[name])}

    graphs = {name: replace(graph, **seal(graph.file)) for name, graph in manifest.graphs.items()}
    spec = manifest.input
    if isinstance(spec.text, TextInput):
        tokenizer = File(file=TOKENIZER, **seal(TOKENIZER))
        spec = replace(spec, text=replace(spec.text, tokenizer=tokenizer))
    return replace(manifest, graphs=graphs, input=spec, weights=File(file=WEIGHTS, **seal(WEIGHTS)))


def check_manifest(manifest: Manifest) -> None:
    """Checks that the parts of a manifest fit each other; each part alone is checked by its type.

    Raises BundleError, naming the bundle and the two parts that do not fit.
    """
    try:
        _check_names(manifest)
        _check_graphs(manifest)
        _check_head(manifest, {spec.name: spec for spec in manifest.stored()})
    except BundleError as error:
        raise BundleError(f"manifest of bundle {manifest.name}: {error}") from None


def _check_names(manifest: Manifest) -> None:
    text = manifest.input.text if isinstance(manifest.input.text, TextInput) else None
    entries: list[File | Graph] = [manifest.weights, *manifest.graphs.values()]
    entries += [text.tokenizer] if text else []
    files = [entry.file for entry in entries]
    for file in files:
        if not is_plain(file):
            raise BundleError(f"names the file {file!r}, expected a plain file name")
    texts = (text.template, *text.words) if text else ()
    names = (
        manifest.name,
        *manifest.labels,
        *manifest.target.columns,
        *texts,
        *(parameter.name for parameter in manifest.parameters),
    )
    if strange := [name for name in names if not name.isprintable()]:
        raise BundleError(f"names {strange[0]!r}, expected printable characters")
    _check_once("file", files)
    _check_once("label", manifest.labels)
    _check_once("column", manifest.target.columns)
    if text and text.words and len(text.words) != len(manifest.labels):
        raise BundleError(f"has {len(text.words)} words for {len(manifest.labels)} labels")
    _check_once("parameter", (parameter.name for parameter in manifest.parameters))


def _check_once(what: str, names: Iterable[str]) -> None:
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            raise BundleError(f"{what} {name!r} occurs twice")
        earlier.add(name)


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
    head, outputs, target = manifest.head, manifest.outputs, manifest.target
    if target.has_columns and not target.own and len(target.columns) != outputs:
        raise BundleError(f"loss {target.loss} has {len(target.columns)} columns for {outputs} labels")
    if target.class_weights and len(target.class_weights) != outputs:
        raise BundleError(f"loss {target.loss} has {len(target.class_weights)} weights for {outputs} labels")
    if target.compared == "input" and manifest.input.vocabulary is not None:
        raise BundleError("the input is token ids, which no loss can compare outputs with")
    shapes = {head.weight: (outputs, head.features)} | ({head.bias: (outputs,)} if head.bias else {})
    for name, shape in shapes.items():
        if name not in stored or stored[name].shape != shape:
            stored_shape = stored[name].shape if name in stored else "missing"
            raise BundleError(f"head parameter {name} is {stored_shape}, expected {shape}")
    if manifest.features.get("head", (head.features,)) != (head.features,):
        raise BundleError(
            f"features of the head are {manifest.features['head']}, expected ({head.features},)"
        )
