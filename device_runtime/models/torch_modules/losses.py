"""The losses that a bundle can have besides cross-entropy, and a user's own, of each sample in torch.

Outputs and targets are float32 (n, columns), results (n,): the mean over the columns.
"""
# mypy: allow-untyped-calls, allow-any-unimported

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.errors import EngineError, ExportError, one_line

from .functional_module import CROSS_ENTROPY_LOSS, SampleLoss, cross_entropy

OwnLoss = Callable[[Tensor, Tensor], Tensor]


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error."""
    off = outputs - targets
    return (off * off).mean(1)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error."""
    return (outputs - targets).abs().mean(1)


def huber(outputs: Tensor, targets: Tensor, delta: float) -> Tensor:
    """Half of the square up to `delta`, a straight line beyond (Huber 1964)."""
    off = (outputs - targets).abs()
    return torch.where(off <= delta, 0.5 * off * off, delta * (off - 0.5 * delta)).mean(1)


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy with logits, in nats; targets are 0 or 1."""
    return (outputs.relu() - outputs * targets + torch.log1p(torch.exp(-outputs.abs()))).mean(1)


def weighted_cross_entropy(outputs: Tensor, y: Tensor, weights: Sequence[float]) -> Tensor:
    """Cross-entropy of each sample times the weight of its label, in nats; y: int64 (n,)."""
    return cross_entropy(outputs, y) * outputs.new_tensor(weights).index_select(0, y)


def loss_of(target: TargetSpec, own: OwnLoss | None = None) -> SampleLoss:
    """The loss that a bundle names; `own` is the user's. Raises EngineError for an own loss without code."""
    if target.is_cross_entropy:
        if not target.class_weights:
            return CROSS_ENTROPY_LOSS
        return SampleLoss(target, partial(weighted_cross_entropy, weights=target.class_weights))
    if target.own and own is None:
        raise EngineError(
            f"loss {target.loss} is a function of whoever exported the bundle, and only the bundle's graphs "
            "have it: choose engine onnxruntime"
        )
    shipped: dict[str, OwnLoss] = {
        "mse": mse,
        "mae": mae,
        "huber": partial(huber, delta=target.delta),
        "bce": bce,
    }
    return SampleLoss(target, own or shipped[target.loss])


def loss_from_file(where: str) -> OwnLoss:
    """The function that FILE.py:FUNCTION names. Raises ExportError."""
    file, colon, name = where.rpartition(":")
    if not (colon and name.isidentifier() and file.endswith(".py")):
        raise ExportError(f"loss {where!r} is not FILE.py:FUNCTION, as in losses.py:asymmetric")
    if not Path(file).is_file():
        raise ExportError(f"loss {where}: there is no file {file}")
    try:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, name)
    except Exception as error:  # the user's file runs here
        raise ExportError(
            f"loss {where} cannot be read: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not callable(function):
        raise ExportError(f"loss {where} is a {type(function).__name__}, expected a function")
    checked: OwnLoss = function
    return checked
