"""The module of a bundle: given, or built anew from what the bundle says it was made from."""

import copy
from collections.abc import Iterable

import torch
from torch import nn

from device_runtime.models import networks as torch_networks
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.errors import EngineError, ExportError

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
