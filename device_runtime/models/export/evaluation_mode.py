"""Finds what a module does only in training mode, and a bundle therefore leaves out."""
# mypy: allow-untyped-calls, allow-any-unimported

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    batch_norms,
    run,
    stored_tensors,
)

from .random_draws import recorded, seeded

CLOSE = 1e-4  # a module that differs by more of the largest value does something else in training
SHOWN = 3

Layers = Mapping[str, nn.Module]


@dataclass(frozen=True)
class _Outputs:
    """The logits of a pass, and whether it changed a stored tensor, such as the vector of a spectral norm."""

    logits: Tensor
    moved: bool


def left_out(subject: FunctionalModule) -> str:
    """What the module's layers do in training mode alone, as "Dropout (drop, body.3)"; empty for nothing.

    Batch norms are not counted. Runs copies of the module on its example; a layer that fails in training mode
    counts.
    """
    module = copy.deepcopy(subject.module).eval()
    subject = replace(subject, module=module)
    usual = _outputs(subject, {})
    layers = {name: part for name, part in module.named_modules() if _may_differ(part)}
    drawing = {name: layers[name] for name in _drawing(subject, layers)}
    others = {name: part for name, part in layers.items() if name not in drawing}
    different = dict(drawing)
    if _differs(subject, others, usual):
        for kind in {type(part) for part in others.values()}:
            alike = {name: part for name, part in others.items() if type(part) is kind}
            if _differs(subject, alike, usual):
                different |= alike
    return _listing({name: part for name, part in layers.items() if name in different})


def frozen_norms(module: nn.Module) -> str:
    """The batch norms that a bundle keeps frozen, as people read them; empty for none."""
    norms = batch_norms(module)
    if not norms:
        return ""
    fresh = all(not bool(module.get_submodule(name).running_mean.any()) for name in norms)
    values = "mean 0 and variance 1, as they are new" if fresh else "the mean and variance that they have"
    return f"{len(norms)} batch norms stay at {values}: --batchnorm training has them follow the batches"


def _may_differ(part: nn.Module) -> bool:
    """Layers of torch that look at `training`, layers with hooks, and all layers of others."""
    if isinstance(part, _BatchNorm) and type(part).__module__.startswith("torch."):
        return False
    plain = type(part).__module__.startswith("torch.nn.modules.") and not part._forward_pre_hooks
    return not plain or isinstance(part, _LOOK_AT_TRAINING)


_LOOK_AT_TRAINING = (
    nn.modules.dropout._DropoutNd,
    nn.modules.instancenorm._InstanceNorm,
    nn.RReLU,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def _drawing(subject: FunctionalModule, layers: Layers) -> Sequence[str]:
    """The layers that draw random numbers in training mode."""
    with _training(layers), seeded(0), recorded(subject.module) as draws:
        try:
            _run(subject)
        except Exception:  # the module's own code runs here; `_differs` finds the layer
            return ()
    inside = {draw.layer for draw in draws.torch}
    return [name for name in layers if name in inside]


def _outputs(subject: FunctionalModule, layers: Layers) -> _Outputs | None:
    """The logits with these layers in training mode; None where that fails."""
    with _training(layers), seeded(0):
        try:
            return _run(subject)
        except Exception:  # the module's own code runs here
            return None


def _run(subject: FunctionalModule) -> _Outputs:
    stored = stored_tensors(subject.module)
    tensors = {name: value.clone() for name, value in stored.items()}
    with torch.no_grad():
        logits = run(subject, subject.example.clone(), tensors).logits
    return _Outputs(logits, any(not torch.equal(tensors[name], value) for name, value in stored.items()))


def _differs(subject: FunctionalModule, layers: Layers, usual: _Outputs | None) -> bool:
    if not layers or usual is None:
        return False
    outputs = _outputs(subject, layers)
    if outputs is None or outputs.logits.shape != usual.logits.shape or outputs.moved:
        return True
    return bool((outputs.logits - usual.logits).abs().max() > CLOSE * usual.logits.abs().max())


@contextmanager
def _training(layers: Layers) -> Iterator[None]:
    """Puts these layers alone, not those within them, into training mode meanwhile."""
    for part in layers.values():
        part.training = True
    try:
        yield
    finally:
        for part in layers.values():
            part.training = False


def _listing(layers: Layers) -> str:
    kinds: dict[str, list[str]] = {}
    for name, part in layers.items():
        kinds.setdefault(type(part).__name__, []).append(name or "the module itself")
    return "; ".join(
        f"{kind} ({', '.join(names[:SHOWN])}{f', {len(names) - SHOWN} more' if len(names) > SHOWN else ''})"
        for kind, names in kinds.items()
    )
