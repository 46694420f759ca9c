"""Finds a module's head, and the level of each parameter: low, mid, up or head."""
# mypy: allow-untyped-calls, allow-any-unimported

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from device_runtime.models.bundles.manifest import Level
from device_runtime.models.bundles.names import LEVELS
from device_runtime.models.errors import ExportError

from .functional_module import stored_tensors

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModuleLevels:
    """The head's name, and the level of every stored tensor by name."""

    head: str
    levels: Mapping[str, Level]


def find_head(module: nn.Module, name: str | None) -> str:
    """The head's name: `name`, or the last nn.Linear. Raises ExportError if it is no linear layer."""
    linear = {n: m for n, m in module.named_modules() if isinstance(m, nn.Linear)}
    if name is not None:
        if name not in linear:
            raise ExportError(
                f"head {name!r} is no nn.Linear of the module; {', '.join(linear) or 'none'} are"
            )
        return name
    if not linear:
        raise ExportError(f"{type(module).__name__} has no nn.Linear, which the head must be: end with one")
    return str(list(linear)[-1])


def assign_levels(module: nn.Module, head: str, prefixes: Mapping[str, str] | None) -> ModuleLevels:
    """Assigns levels by `prefixes`, else by the module's attribute `levels`, else in thirds by size.

    A warning is logged for thirds. Raises ExportError for an unknown level or a tensor without a prefix.
    """
    names = list(stored_tensors(module))
    prefixes = prefixes or getattr(module, "levels", None)
    if prefixes is None:
        return ModuleLevels(head, _thirds(module, head))
    if unknown := sorted(set(prefixes.values()) - set(LEVELS)):
        raise ExportError(f"level {unknown[0]!r} is none of {', '.join(LEVELS)}")
    levels: dict[str, Level] = {}
    for name in names:
        matching = [p for p in prefixes if name == p or name.startswith(f"{p}.")]
        if _inside(name, head):
            levels[name] = "head"
        elif not matching:
            raise ExportError(f"{name} has no level; prefixes are {', '.join(prefixes)}")
        else:
            levels[name] = prefixes[max(matching, key=len)]  # type: ignore[assignment]
    return ModuleLevels(head, levels)


def level_outputs(module: nn.Module, names: Mapping[str, str] | None) -> dict[str, str]:
    """The submodule at the end of low, mid and up: `names`, else the module's attribute `level_outputs`.

    Raises ExportError for another level or a submodule that is not there.
    """
    outputs = dict(names or getattr(module, "level_outputs", {}))
    submodules = {name for name, _ in module.named_modules()}
    for level, name in outputs.items():
        if level not in LEVELS[:-1]:
            raise ExportError(f"level {level!r} has no feature map; {', '.join(LEVELS[:-1])} have")
        if name not in submodules:
            raise ExportError(f"the feature map of level {level} is that of {name!r}, which is no submodule")
    return {level: outputs[level] for level in LEVELS if level in outputs}


def _thirds(module: nn.Module, head: str) -> dict[str, Level]:
    """Puts about a third of the parameters each into low, mid and up, in the order of the layers."""
    sizes: dict[str, int] = {}
    tensors = stored_tensors(module)
    for name, tensor in tensors.items():
        if not _inside(name, head):
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + tensor.numel()
    total, before = max(1, sum(sizes.values())), 0
    of_layer: dict[str, Level] = {}
    thirds: tuple[Level, ...] = ("low", "mid", "up")
    for layer, size in sizes.items():
        of_layer[layer] = thirds[min(2, 3 * (before + size // 2) // total)]
        before += size
    logger.warning(
        "levels are thirds by parameter count: %s",
        ", ".join(f"{n or 'own'}={v}" for n, v in of_layer.items()),
    )
    return {n: "head" if _inside(n, head) else of_layer[n.rpartition(".")[0]] for n in tensors}


def _inside(name: str, head: str) -> bool:
    return name.rpartition(".")[0] == head
