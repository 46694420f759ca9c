"""Finds the torch module of a bundle: the given one, or the network that the manifest names."""
# mypy: allow-untyped-calls, allow-any-unimported

import copy
from collections.abc import Iterable

import torch
from torch import nn

from device_runtime.models import networks as torch_networks
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.errors import EngineError, ExportError
from device_runtime.models.peft.tunable_sets import inject, scale_features
from device_runtime.models.torch_modules.functional_module import FunctionalModule, stored_tensors
from device_runtime.models.torch_modules.levels import level_outputs
from device_runtime.models.torch_modules.losses import loss_of


def subject_of(manifest: Manifest, module: nn.Module | None, device: torch.device) -> FunctionalModule:
    """The network of `manifest` on `device`, in eval mode, without values, which come from the bundle.

    `module` is copied; the parameters that the bundle's tunable sets inject are added if it lacks them.
    Without one, the network that the manifest names is built from this package's own list; nothing else is
    ever imported. Raises EngineError if the manifest names none, or the tensors differ from the bundle's.
    """
    network = _built_network(manifest) if module is None else copy.deepcopy(module)
    head, spec = manifest.head.weight.rpartition(".")[0], manifest.input
    try:
        if manifest.scale is not None and manifest.scale not in stored_tensors(network):
            scale_features(network, head)
        if _first_difference(manifest, network):
            inject(network, {str(name): settings for name, settings in manifest.sets.items()}, head)
        outputs = level_outputs(network, None)
    except ExportError as error:
        raise EngineError(f"bundle {manifest.name}: {error}") from error
    what = manifest.source.network if manifest.source else type(network).__name__
    _check_alike(manifest, _first_difference(manifest, network), what)
    example = torch.zeros((1, *spec.shape), dtype=torch.int64 if spec.vocabulary else torch.float32)
    module, loss = _without_memory(network.to(device)).eval(), loss_of(manifest.target)
    return FunctionalModule(module, head, example, outputs, loss)


def _built_network(manifest: Manifest) -> nn.Module:
    source = manifest.source
    if source is None:
        raise EngineError(
            f"bundle {manifest.name} does not say which network it was made from; export it by a short "
            "name, or give the torch engine its module"
        )
    settings = {name: value for name, value in source.settings.items() if name not in torch_networks.FILES}
    try:
        # without memory: the manifest's sizes are not trusted until they match the weights
        with torch.device("meta"):
            sketch = torch_networks.build(source.network, settings)
        _check_alike(manifest, _first_difference(manifest, sketch, stored_tensors(sketch)), source.network)
        with torch.random.fork_rng(devices=[]):
            return torch_networks.build(source.network, settings)
    except ExportError as error:
        raise EngineError(f"bundle {manifest.name}: {error}") from error


def _check_alike(manifest: Manifest, differing: str, network: str) -> None:
    if differing:
        raise EngineError(f"bundle {manifest.name} was not made from this {network}: {differing}")


def _without_memory(network: nn.Module) -> nn.Module:
    """Frees the memory of the tensors that the bundle stores; they keep their shapes."""
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for tensor in (tensors[name] for name in stored_tensors(network)):
        tensor.data = tensor.new_zeros(()).expand(tensor.shape)
    return network


def _first_difference(manifest: Manifest, network: nn.Module, names: Iterable[str] | None = None) -> str:
    """Describes the first tensor, of these names or of all, that differs from the manifest; else empty."""
    expected = {spec.name: spec for spec in manifest.stored()}
    actual = {
        name: TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in stored_tensors(network).items()
    }
    for name in sorted(expected.keys() | actual.keys() if names is None else names):
        if actual.get(name) != expected.get(name):
            return f"{name} is {_in_words(actual.get(name))}, the bundle has {_in_words(expected.get(name))}"
    return ""


def _in_words(spec: TensorSpec | None) -> str:
    return "missing" if spec is None else f"{spec.dtype} {spec.shape}"
