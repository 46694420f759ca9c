"""Steps of copies that are trained together: proximal terms, clipping, noise and the optimiser.

Tensors of copies are stacked: (k, *shape), where copies that have ended their steps come last. A step changes
the first of them.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import EngineError
from device_runtime.models.training.optimizer import Adam, Optimizer, Privacy, Sgd

from .place import TorchProcessor

Stacked = Mapping[str, Tensor]
Anchor = tuple[float, Tensors]
"""weight / 2 * ||w - anchor||^2 over the anchor's tensors, which are of the trained set."""


class StackedOptimizer(Protocol):
    """A run of an optimiser over the tensors of copies."""

    def step(self, free: Stacked, grads: Stacked) -> None:
        """One step of as many copies as `grads` has: changes `free` in place; `grads` may be used up."""


def start(optimizer: Optimizer, free: Stacked) -> StackedOptimizer:
    """Starts a run over tensors of the shapes of `free`. Raises EngineError for an optimiser of one's own."""
    if isinstance(optimizer, Sgd):
        return StackedSgd(optimizer, free)
    if isinstance(optimizer, Adam):
        return StackedAdam(optimizer, free)
    raise EngineError(f"copies are trained together by SGD and Adam, not by {type(optimizer).__name__}")


class StackedSgd:
    """As `optimizer.SgdSteps`."""

    def __init__(self, sgd: Sgd, free: Stacked) -> None:
        self._sgd = sgd
        moving = free if sgd.momentum else {}
        self._velocity = {name: torch.zeros_like(tensor) for name, tensor in moving.items()}

    def step(self, free: Stacked, grads: Stacked) -> None:
        """See `StackedOptimizer`."""
        sgd = self._sgd
        for name, grad in grads.items():
            weight = free[name][: len(grad)]
            slope = grad.add(weight, alpha=sgd.weight_decay) if sgd.weight_decay else grad
            if sgd.momentum:
                slope = self._velocity[name][: len(grad)].mul_(sgd.momentum).add_(slope)
            weight.sub_(slope, alpha=sgd.lr)


class StackedAdam:
    """As `optimizer.AdamSteps`."""

    def __init__(self, adam: Adam, free: Stacked) -> None:
        self._adam, self._count = adam, 0
        self._moments = {
            name: (torch.zeros_like(tensor), torch.zeros_like(tensor)) for name, tensor in free.items()
        }

    def step(self, free: Stacked, grads: Stacked) -> None:
        """See `StackedOptimizer`."""
        adam, self._count = self._adam, self._count + 1
        for name, grad in grads.items():
            weight, slope = free[name][: len(grad)], grad
            if adam.weight_decay and adam.decoupled:
                weight.mul_(1 - adam.lr * adam.weight_decay)
            elif adam.weight_decay:
                slope = grad.add(weight, alpha=adam.weight_decay)
            mean, square = (moment[: len(grad)] for moment in self._moments[name])
            mean.lerp_(slope, 1 - adam.beta1)
            square.mul_(adam.beta2).addcmul_(slope, slope, value=1 - adam.beta2)
            scale = square.sqrt().div_(sqrt(1 - adam.beta2**self._count)).add_(adam.eps)
            weight.addcdiv_(mean, scale, value=-adam.lr / (1 - adam.beta1**self._count))


class Pulls:
    """The gradients of proximal terms: weight * (w - anchor) for each anchor of each copy."""

    def __init__(self, anchors: Sequence[Sequence[Anchor]], place: TorchProcessor) -> None:
        """anchors: those of each copy, all alike in number and names."""
        self._pulls: list[tuple[Tensor, dict[str, Tensor]]] = []
        for terms in zip(*anchors, strict=True):
            weights = place.tensor(np.array([weight for weight, _ in terms], np.float32))
            names = terms[0][1]
            self._pulls.append(
                (weights, {name: _stacked([anchor[name] for _, anchor in terms], place) for name in names})
            )

    def add(self, free: Stacked, grads: Stacked) -> None:
        """Adds them to `grads`, in place."""
        for weights, anchors in self._pulls:
            for name, anchor in anchors.items():
                grad = grads[name]
                off = free[name][: len(grad)] - anchor[: len(grad)]
                grad.add_(off.mul_(_by_copy(weights[: len(grad)], grad)))


def clip(grads: Stacked, clip_norm: float) -> None:
    """Scales each copy's gradient to a norm of at most `clip_norm`, in place, as `optimizer.clip` does."""
    norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads.values()]).norm(dim=0)
    factors = (clip_norm / (norms + 1e-6)).clamp(max=1.0)
    for grad in grads.values():
        grad.mul_(_by_copy(factors, grad))


class PrivateSums:
    """Clips the gradient of each sample of each copy, and adds the noise; as `optimizer.PrivateGradients`."""

    def __init__(self, privacies: Sequence[Privacy], lots: Sequence[int], place: TorchProcessor) -> None:
        """lots: the expected batch size of each copy."""
        self._privacies, self._place = privacies, place
        self._most = place.tensor(np.array([privacy.max_norm for privacy in privacies], np.float32))
        self._lots = place.tensor(np.array(lots, np.float32))

    def clipped(self, each: Stacked, rows: Tensor, at: slice | Tensor) -> dict[str, Tensor]:
        """The sum over samples (k, ..) of gradients (k, samples, ..), each clipped.

        rows (k, samples): false for padding. at: the places of the copies. A sample whose gradient has no
        finite norm adds nothing.
        """
        norms = torch.stack([grad.flatten(2).norm(dim=2) for grad in each.values()]).norm(dim=0)
        counted = rows & norms.isfinite()
        factors = (self._most[at].unsqueeze(1) / norms).clamp(max=1)
        factors = torch.where(counted, factors, 0)
        sums = {}
        for name, grad in each.items():
            flat = grad.flatten(2)
            flat = torch.where(counted.unsqueeze(2), flat, 0)  # 0 * infinity is no number
            sums[name] = (factors.unsqueeze(1) @ flat).view(len(grad), *grad.shape[2:])
        return sums

    def finish(self, sums: Stacked) -> None:
        """Adds each copy's noise to its sums, and divides them by its lot, in place.

        sums: in the order of the trained set's flat buffer, in which the noise is drawn.
        """
        k = len(next(iter(sums.values())))
        sizes = [total[0].numel() for total in sums.values()]
        drawn = np.zeros((k, sum(sizes)), np.float32)
        for noise, privacy in zip(drawn, self._privacies, strict=False):
            if privacy.noise:
                privacy.noise_of_sum(noise)
        for total, noise in zip(sums.values(), self._place.tensor(drawn).split(sizes, 1), strict=True):
            total.add_(noise.reshape(total.shape)).div_(_by_copy(self._lots[:k], total))


def _by_copy(values: Tensor, tensor: Tensor) -> Tensor:
    """values (k,) in a shape that broadcasts to (k, ..)."""
    return values.view(-1, *[1] * (tensor.dim() - 1))


def _stacked(arrays: Sequence[NDArray[np.float32]], place: TorchProcessor) -> Tensor:
    """(k, *shape); without copies where all are the same array."""
    if all(array is arrays[0] for array in arrays):
        return place.tensor(arrays[0]).expand(len(arrays), *arrays[0].shape)
    return place.tensor(np.stack(arrays))
