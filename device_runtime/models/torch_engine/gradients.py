"""Losses and gradients of a module on one batch: traced into graphs, and run by the torch engine."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from device_runtime.models.export.subject import Subject, run

from .objectives import OBJECTIVES, Given


@dataclass(frozen=True)
class Inputs:
    """What a graph is given: x (n, ...), y (n,), extra inputs and tensors of the model by name."""

    x: Tensor
    y: Tensor
    extras: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]


def losses_of(subject: Subject, inputs: Inputs) -> Tensor:
    """Cross-entropy of each sample in nats, shape (n,); their mean depends on batches by rounding only."""
    logits = run(subject, inputs.x, inputs.tensors).logits
    return -functional.log_softmax(logits, 1).gather(1, inputs.y.unsqueeze(1)).squeeze(1)


def loss_and_gradients(
    subject: Subject, objective: str, inputs: Inputs, trainable: Sequence[str]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Loss () and the gradient of each trainable tensor. `autograd.grad` keeps fused backwards whole."""
    loss, found = _gradients(subject, objective, inputs, trainable)
    grads = tuple(grad for grad in found if grad is not None)
    if len(grads) < len(found):
        idle = trainable[found.index(None)]
        raise ValueError(f"{idle} does not influence the loss; give it requires_grad=False")
    return loss.detach(), grads


def reached(subject: Subject, objective: str, inputs: Inputs, names: Sequence[str]) -> frozenset[str]:
    """Those of the tensors that influence the loss."""
    _, grads = _gradients(subject, objective, inputs, names)
    return frozenset(name for name, grad in zip(names, grads, strict=True) if grad is not None)


def _gradients(
    subject: Subject, objective: str, inputs: Inputs, names: Sequence[str]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    free = {name: inputs.tensors[name].detach().requires_grad_() for name in names}
    given = Given(subject, inputs.x, inputs.y, inputs.extras, {**inputs.tensors, **free})
    with torch.enable_grad():
        loss = OBJECTIVES[objective].loss(given)
        return loss, torch.autograd.grad(loss, list(free.values()), allow_unused=True)
