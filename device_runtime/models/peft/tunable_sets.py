"""Adds tunable sets and a feature scale to a module, and lists the parameters that each set trains."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from device_runtime.models import peft as torch_peft
from device_runtime.models.bundles.manifest import Parameter, Setting, Tunable
from device_runtime.models.bundles.names import LEVELS_OF, SCALE, TUNABLE_SETS
from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.functional_module import stored_tensors
from device_runtime.models.torch_modules.parameters import ModuleLevels

Sets = Mapping[str, Mapping[str, Setting]]

CHANGING = ("prompt", "prefix")
"""Sets that change what the network computes as soon as they are added: softmax weighs every token."""


@dataclass(frozen=True)
class Injected:
    """The tunable sets of a bundle with all settings; `base` names the module's own trainable parameters."""

    settings: dict[Tunable, dict[str, Setting]]
    base: frozenset[str]


def inject(module: nn.Module, sets: Sets, head: str | None = None) -> Injected:
    """Adds the parameters of the parameter-efficient sets to the module, in place.

    Raises ExportError for an unknown set, settings that it does not have, or a module with nothing to train.
    """
    if unknown := sorted(sets.keys() - set(TUNABLE_SETS)):
        raise ExportError(f"there is no tunable set {unknown[0]!r}; there are {', '.join(TUNABLE_SETS)}")
    base = frozenset(name for name, parameter in module.named_parameters() if parameter.requires_grad)
    if not base:
        raise ExportError("no parameter of the module has requires_grad=True, so there is nothing to train")
    settings: dict[Tunable, dict[str, Setting]] = {}
    for name in (cast(Tunable, name) for name in TUNABLE_SETS if name in sets):
        if name in LEVELS_OF and sets[name]:
            raise ExportError(f"tunable set {name} has no settings, got {', '.join(sets[name])}")
        if name in LEVELS_OF:
            settings[name] = {}
            continue
        settings[name] = dict(torch_peft.inject(module, name, sets[name], head))
    return Injected(settings, base)


def change_warning(sets: Sets) -> str:
    """A warning about tunable sets that change the network for the bundle's other sets; empty if none do."""
    changing = [name for name in CHANGING if name in sets]
    others = [name for name in TUNABLE_SETS if name in sets and name not in changing]
    if not changing or len(sets) == 1:
        return ""
    trained = f"forward and {', '.join(others)}" if others else "forward"
    return (
        f"untrained {' and '.join(changing)} tokens change what the network computes, in {trained} too; "
        f"to keep the others unchanged, export a bundle for each"
    )


def parameter_table(module: nn.Module, layout: ModuleLevels, injected: Injected) -> tuple[Parameter, ...]:
    """Every stored tensor with its level and the sets that train it. Raises ExportError for an empty set."""
    members = {name: _members(module, layout, injected, name) for name in injected.settings}
    if empty := [name for name, names in members.items() if not names]:
        raise ExportError(f"no parameter of the module is in tunable set {empty[0]}")
    return tuple(
        Parameter(
            name,
            tuple(tensor.shape),
            "float32" if tensor.is_floating_point() else "int64",
            layout.levels[name],
            tuple(tunable for tunable, names in members.items() if name in names),
        )
        for name, tensor in stored_tensors(module).items()
    )


def _members(module: nn.Module, layout: ModuleLevels, injected: Injected, tunable: Tunable) -> Set[str]:
    """Names of the parameters that a tunable set trains.

    A set of levels has the module's own parameters; the others have the injected ones, and the head unless
    the setting `head` is "without".
    """
    if tunable in LEVELS_OF:
        return frozenset(name for name in injected.base if layout.levels[name] in LEVELS_OF[tunable])
    free = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    settings = injected.settings[tunable]
    names = free.intersection(torch_peft.members(module, tunable, layout.head, settings))
    if settings.get("head") != "without":
        return names
    return frozenset(name for name in names if name.rpartition(".")[0] != layout.head)


def scale_features(module: nn.Module, head: str) -> None:
    """Adds a scale of 1 for each feature to the layer `head`, in place: a buffer, never trained.

    The layer multiplies its input by it; class means set its values. Other tensors keep their names. Raises
    ExportError if the head has an attribute of that name.
    """
    layer = module.get_submodule(head)
    if hasattr(layer, SCALE):
        raise ExportError(f"head {head!r} has a {SCALE} of its own: its features cannot be given another")
    layer.register_buffer(SCALE, torch.ones(int(layer.in_features)))
    layer.register_forward_pre_hook(_scaled)


def _scaled(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] * getattr(layer, SCALE), *inputs[1:])
