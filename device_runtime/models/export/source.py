"""The module of a bundle: given, or built anew from what the bundle says it was made from."""

import argparse
import copy
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn

from device_runtime.models import networks
from device_runtime.models import networks as torch_networks
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.errors import EngineError, ExportError, one_line

from .levels import level_outputs
from .subject import Subject, stored_tensors
from .tunable_sets import inject, scale_features

# mypy: allow-untyped-calls, allow-any-unimported


def subject_of(manifest: Manifest, module: nn.Module | None, device: torch.device) -> Subject:
    """The network of `manifest` on `device`, in eval mode, without values: those come from the bundle.

    `module` is copied, and may hold what the bundle's tunable sets inject, or not yet. Without one, the
    network that the manifest names is built from this package's own list; nothing else is ever imported.
    Raises EngineError where the manifest names none, or the tensors are not those of the bundle.
    """
    network = _built(manifest) if module is None else copy.deepcopy(module)
    head, given = manifest.head.weight.rpartition(".")[0], manifest.input
    try:
        if manifest.scale is not None and manifest.scale not in stored_tensors(network):
            scale_features(network, head)
        if _differing(manifest, network):
            inject(network, {str(name): settings for name, settings in manifest.sets.items()}, head)
        outputs = level_outputs(network, None)
    except ExportError as error:
        raise EngineError(f"bundle {manifest.name}: {error}") from error
    what = manifest.source.network if manifest.source else type(network).__name__
    _check_alike(manifest, _differing(manifest, network), what)
    example = torch.zeros((1, *given.shape), dtype=torch.int64 if given.vocabulary else torch.float32)
    return Subject(_emptied(network.to(device)).eval(), head, example, outputs)


def _built(manifest: Manifest) -> nn.Module:
    source = manifest.source
    if source is None:
        raise EngineError(
            f"bundle {manifest.name} does not say which network it was made from; export it by a short "
            "name, or give the torch engine its module"
        )
    settings = {name: value for name, value in source.settings.items() if name not in torch_networks.FILES}
    try:
        with torch.device(
            "meta"
        ):  # without memory: sizes are a stranger's until they are those of the weights
            sketch = torch_networks.build(source.network, settings)
        _check_alike(manifest, _differing(manifest, sketch, stored_tensors(sketch)), source.network)
        with torch.random.fork_rng(devices=[]):
            return torch_networks.build(source.network, settings)
    except ExportError as error:
        raise EngineError(f"bundle {manifest.name}: {error}") from error


def _check_alike(manifest: Manifest, differing: str, network: str) -> None:
    if differing:
        raise EngineError(f"bundle {manifest.name} was not made from this {network}: {differing}")


def _emptied(network: nn.Module) -> nn.Module:
    """What the bundle stores keeps its shape and gives its memory back."""
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for tensor in (tensors[name] for name in stored_tensors(network)):
        tensor.data = tensor.new_zeros(()).expand(tensor.shape)
    return network


def _differing(manifest: Manifest, network: nn.Module, names: Iterable[str] | None = None) -> str:
    """The first tensor, of these or of all, that is not as the manifest says, in words; empty if all are."""
    wanted = {spec.name: spec for spec in manifest.stored()}
    found = {
        name: TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in stored_tensors(network).items()
    }
    for name in sorted(wanted.keys() | found.keys() if names is None else names):
        if found.get(name) != wanted.get(name):
            return f"{name} is {_says(found.get(name))}, the bundle has {_says(wanted.get(name))}"
    return ""


def _says(spec: TensorSpec | None) -> str:
    return "missing" if spec is None else f"{spec.dtype} {spec.shape}"


# FROM network_factory: The torch module that `device-runtime export` is asked for.

T = TypeVar("T")


FILES = ("model.safetensors", "pytorch_model.bin")
"""Of weights in a folder, the first that is there."""


def build(args: argparse.Namespace, given: Mapping[str, Any] | None = None) -> Any:
    """The module the arguments ask for, with its weights; `given`, if anything, in the place of its settings.

    Raises ExportError.
    """
    try:
        import onnx
        import onnxscript
        import torch
    except ImportError as error:
        hint = "pip install 'device-runtime[torch]'"
        raise ExportError(f"export needs {error.name}, which is not installed: {hint}") from error
    del onnx, onnxscript
    from device_runtime.models.export.levels import find_head
    from device_runtime.models.export.weights import load_weights

    if args.new_head and args.weights is None:
        raise ExportError("--new-head is for --weights; without them the whole module is new")
    if not 0 <= args.seed < 1 << 63:
        raise ExportError(f"--seed is {args.seed}, expected 0 to {(1 << 63) - 1}")
    torch.manual_seed(args.seed)
    module = _made(args.factory, settings(args.set) if given is None else given)
    if not isinstance(module, torch.nn.Module):
        raise ExportError(f"{args.factory} gives a {type(module).__name__}, expected a torch.nn.Module")
    if args.weights is not None:
        head = find_head(module, args.head) if args.new_head else None
        load_weights(module, _file(args.weights), skip_head=head)
    return module


def _file(weights: Path) -> Path:
    if not weights.is_dir():
        return weights
    found = next((weights / name for name in FILES if (weights / name).is_file()), None)
    if found is None:
        raise ExportError(f"{weights} has none of {', '.join(FILES)}")
    return found


def _made(where: str, given: Mapping[str, Any]) -> Any:
    if ":" not in where:
        return networks.build(where, given)
    factory = _factory(where)
    try:
        return factory(**given)
    except Exception as error:
        raise ExportError(f"{where} with {given} fails: {one_line(error)}") from error


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


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE each; a value is a JSON literal, or else a string. Raises ExportError."""
    return once(_pair(item) for item in pairs)


def once(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Raises ExportError for a name that is given twice."""
    given: dict[str, T] = {}
    for name, value in pairs:
        if name in given:
            raise ExportError(f"{name} is given twice, as {given[name]} and as {value}")
        given[name] = value
    return given


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ExportError(f"{text!r} is not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
