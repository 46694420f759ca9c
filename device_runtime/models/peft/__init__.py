"""Adds parameter-efficient tunable sets to a network, and lists the parameters that each set trains.

They follow Sun et al. 2022 (FedPEFT), and Babakniya et al. 2023 (SLoRA) for `sparse` and `lora`. Added are
plain parameters and buffers of the network's own modules, so that all other names stay as they are.
`adapter`, `lora` and `sparse` do not change the network's function until they are trained; `prompt` and
`prefix` change it at once, since softmax gives every token a weight.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.parameters import find_head

from . import methods
from .places import Value, completed

_ADD: Mapping[str, Callable[[nn.Module, Mapping[str, Value], str], None]] = {
    "adapter": methods.add_adapter,
    "prompt": methods.add_prompt,
    "prefix": methods.add_prefix,
    "lora": methods.add_lora,
    "sparse": methods.add_sparse,
}
_TRAINED: Mapping[str, tuple[str, ...]] = {
    "adapter": methods.ADAPTER_TRAINED,
    "prompt": methods.PROMPT_TRAINED,
    "prefix": methods.PREFIX_TRAINED,
    "lora": methods.LORA_TRAINED,
    "sparse": methods.SPARSE_TRAINED,
}
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def inject(
    module: nn.Module, name: str, settings: Mapping[str, Value], head: str | None = None
) -> dict[str, Value]:
    """Adds the parameters of the set to `module`, in place; returns all settings of the set.

    `head` is as in `find_head`; nothing is added to the head. Raises ExportError for an unknown set or
    setting, a value out of range, a set that the module has already, or a network without a place for it.
    """
    full = completed(name, settings)
    if name in _ADD:
        if names := _trained(module, name):
            raise ExportError(f"tunable set {name} cannot be added: the module already has {names[0]}")
        _ADD[name](module, full, find_head(module, head))
    return full


def members(
    module: nn.Module, name: str, head: str, settings: Mapping[str, Value] = MappingProxyType({})
) -> tuple[str, ...]:
    """Names of the parameters that the set trains, with the head's, in the module's order.

    The set `bias` has every bias, those of normalisation layers too (FedPEFT, algorithm 2), and with `norms`
    = "affine" the weights of normalisation layers as well. Parameters with requires_grad=False are ignored.
    Raises ExportError for an unknown set or setting, a head that has nothing to train, or a set that was not
    injected.
    """
    affine = completed(name, settings).get("norms") == "affine"
    names = [own for own, parameter in module.named_parameters() if parameter.requires_grad]
    of_head = {own for own in names if own.rpartition(".")[0] == head}
    if not of_head:
        raise ExportError(f"head {head!r} has no parameters with requires_grad=True")
    trained = _trained(module, name) if name in _ADD else _biases(module, affine)
    if name in _ADD and not trained:
        raise ExportError(f"tunable set {name} was not injected into the module")
    chosen = of_head.union(trained)
    return tuple(own for own in names if own in chosen)


def _trained(module: nn.Module, name: str) -> list[str]:
    return [full for full, _ in module.named_parameters() if full.rpartition(".")[2] in _TRAINED[name]]


def _biases(module: nn.Module, affine: bool) -> list[str]:
    added = {name for names in _TRAINED.values() for name in names}
    names = []
    for prefix_, owner in module.named_modules():
        for own, _ in owner.named_parameters(recurse=False):
            is_bias = own == "bias" or own.startswith("bias_") or own.endswith("_bias")
            is_scale = affine and own == "weight" and isinstance(owner, _NORMS)
            if (is_bias and own not in added) or is_scale:
                names.append(f"{prefix_}.{own}" if prefix_ else own)
    return names
