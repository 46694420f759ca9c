"""A module's parameters: its head, the level of each, and pre-trained values.

Finds a module's head, and the level of each parameter: low, mid, up or head.

Loads pre-trained weights from safetensors, `.npz` or a torch state dict; checks names and shapes.

A pickle is read only if it holds nothing but tensors and plain containers.
"""
# mypy: allow-any-unimported, allow-untyped-calls

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from device_runtime.models.bundles.manifest import Level
from device_runtime.models.bundles.names import LEVELS
from device_runtime.models.errors import ExportError, one_line

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


NESTED_UNDER = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the tensors
WRAPPED_IN = ("module.", "_orig_mod.")  # prefixes of DataParallel and of torch.compile
COUNTER = "num_batches_tracked"  # of BatchNorm; nothing that we compute needs it
LISTED = 4  # names in an error


@dataclass(frozen=True)
class Checkpoints:
    """How published files of a network differ from its module; the module's attribute `checkpoints`.

    prefix: of all names in the module, missing in files.
    absent: submodules, without the prefix, that files of the bare network lack; with a new head they are new
    too.
    spare: names in files that the module does not need.
    adapt: converts the tensors of a file, without the prefix, to those of the module.
    """

    prefix: str = ""
    absent: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    adapt: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None


def load_weights(module: nn.Module, path: Path, *, skip_head: str | None = None) -> None:
    """Copies the tensors of the file into the module, converted to the module's dtypes.

    `skip_head` names a submodule that keeps its values, for another number of classes. The file's tensors for
    it, or for a head of another name, are ignored, and submodules between body and head may be absent (see
    `Checkpoints`). Raises ExportError, with the module unchanged, if the file cannot be read, holds anything
    but tensors, or does not have exactly the module's tensors.
    """
    files: Checkpoints = getattr(module, "checkpoints", Checkpoints())
    read = _unwrapped(read_weights(path), (*WRAPPED_IN, files.prefix))
    if files.adapt is not None:
        read = files.adapt(read)
    tensors = {name: value for name, value in read.items() if not _in_wrapper(name, *files.spare)}
    state = {name.removeprefix(files.prefix): value for name, value in module.state_dict().items()}
    if skip_head is not None:
        head = skip_head.removeprefix(files.prefix)
        aside = [name for name in tensors if _of_a_head(name, head, state)]
        tensors = {name: value for name, value in tensors.items() if name not in aside}
        new = [head, *(part for part in files.absent if not any(_in_wrapper(name, part) for name in tensors))]
        logger.info("%s: ignored %s; new: %s", path, _listed(aside) or "nothing", ", ".join(new))
        state = {name: value for name, value in state.items() if not _in_wrapper(name, *new)}
    if faults := list(_faults(tensors, state)):
        raise ExportError(f"{path} does not fit {type(module).__name__}: {'; '.join(faults)}")
    chosen = {name: value.to(state[name].dtype) for name, value in tensors.items() if name in state}
    if broken := [name for name, value in chosen.items() if not torch.isfinite(value).all()]:
        raise ExportError(f"{path} holds values that are not finite: {_listed(broken)}")
    module.load_state_dict({files.prefix + name: value for name, value in chosen.items()}, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of the file by name, in the file's dtypes. Raises ExportError."""
    if path.suffix not in READERS:
        raise ExportError(f"cannot read weights from {path}: expected a file {', '.join(READERS)}")
    try:
        state = READERS[path.suffix](path)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {one_line(error)}") from error
    except Exception as error:  # a damaged file surfaces as any of half a dozen types
        hint = _CODE if "Weights only load failed" in str(error) or "allow_pickle" in str(error) else ""
        raise ExportError(f"{path} is refused: {hint or one_line(error)}") from error
    for name in NESTED_UNDER:
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not isinstance(state, Mapping):
        raise ExportError(f"{path} holds a {type(state).__name__}, expected tensors by name")
    if other := [f"{name} is a {type(v).__name__}" for name, v in state.items() if not isinstance(v, Tensor)]:
        raise ExportError(f"{path}: {other[0]}, expected a tensor")
    return {str(name): value for name, value in state.items()}


_CODE = (
    "it is damaged, or holds Python objects besides tensors, which could run code when they are read; "
    "save it as safetensors, or with torch.save(module.state_dict(), path)"
)


def _npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.array(file[name], order="C")) for name in file.files}


def _state_dict(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": safetensors.torch.load_file,
    ".npz": _npz,
    ".pt": _state_dict,
    ".pth": _state_dict,
    ".bin": _state_dict,
}
"""Ending of a file's name -> function that reads it."""


def _unwrapped(tensors: Mapping[str, Tensor], prefixes: Sequence[str]) -> dict[str, Tensor]:
    names = dict(tensors)
    for prefix in prefixes:
        if names and all(name.startswith(prefix) for name in names):
            names = {name.removeprefix(prefix): value for name, value in names.items()}
    return names


def _of_a_head(name: str, head: str, state: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is inside the head, or in a part of the file's network that the module lacks."""
    return _in_wrapper(name, head) or name.partition(".")[0] not in {w.partition(".")[0] for w in state}


def _in_wrapper(name: str, *parts: str) -> bool:
    """Whether `name` is one of these names, or inside one of these submodules."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def _faults(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Iterator[str]:
    """Describes missing and unexpected tensors, other shapes and other kinds; ignores counters."""
    missing = [n for n in state if n not in tensors and not n.endswith(COUNTER)]
    extra = [n for n in tensors if n not in state and not n.endswith(COUNTER)]
    both = [(n, tensors[n], state[n]) for n in state if n in tensors]
    shapes = [f"{n} is {tuple(g.shape)}, expected {tuple(w.shape)}" for n, g, w in both if g.shape != w.shape]
    kinds = [
        f"{n} is {g.dtype}, expected {w.dtype}"
        for n, g, w in both
        if g.is_floating_point() != w.is_floating_point() or g.is_complex()
    ]
    for what, names in (("missing", missing), ("not expected", extra)):
        if names:
            yield f"{len(names)} {what} ({_listed(names)})"
    for what, names in (("of another shape", shapes), ("of another kind", kinds)):
        if names:
            yield f"{len(names)} {what} ({_listed(names)})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
