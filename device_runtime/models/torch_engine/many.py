"""Trains many copies of one network at once, each with its own weights and samples."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat
from device_runtime.models.engines.base import Inputs
from device_runtime.models.training.optimizer import Sgd

from .engine import TorchModel

PAYS_BELOW_FLOPS = 6_000_000
"""FLOPs of one sample's training step up to which training copies together pays on a CPU.

Measured on one core with 10 to 50 copies: an MLP (0.2 MFLOP) is 1.9 to 2.5 times as fast, two convolutions on
8x8 (3 MFLOP) 1.8 to 2 times, WRN-10 on 8x8 (5 MFLOP) 1.5 to 1.7 times; two convolutions of 8 and 16 maps on
32x32 (7 MFLOP) and WRN-16 on 32x32 (200 MFLOP) take twice the time.
"""


@dataclass(frozen=True)
class CopySamples:
    """Samples and steps of one copy: prepared x (n, *input), y (n, ..), and the indices of each step's batch.

    `counted`: the first step whose loss counts.
    """

    x: Inputs
    y: NDArray[Any]
    batches: Sequence[NDArray[np.integer[Any]]]
    counted: int = 0


@dataclass(frozen=True)
class TrainedCopies:
    """The trained set of each copy, and its mean loss over the samples of the steps that count."""

    params: list[Flat]
    losses: NDArray[np.float64]


def can_train_many(manifest: Manifest, tunable: str) -> bool:
    """Whether copies can be trained together: the graph exists and uses no batch statistics.

    Copies would share the batch statistics.
    """
    graph = manifest.graphs.get(f"train.{tunable}")
    return graph is not None and not graph.statistics


def is_faster_together(manifest: Manifest, tunable: str, on_cpu: bool) -> bool:
    """Whether training copies together is faster, judged by the FLOPs of the graph, not by a measurement."""
    return not on_cpu or manifest.graphs[f"train.{tunable}"].flops <= PAYS_BELOW_FLOPS


def train_many(
    model: TorchModel, tunable: str, copies: Sequence[CopySamples], sgd: Sgd, clip_norm: float = 0.0
) -> TrainedCopies:
    """Trains one copy of the tunable set for each of `copies` by the bundle's loss, at least one step each.

    clip_norm: the largest norm of a step's gradient; 0: no limit. The result equals that of training one copy
    at a time up to rounding, which may depend on the number of copies. Memory for each copy: three times the
    set, four times with momentum, its samples, and the activations of one batch.
    """
    order = sorted(range(len(copies)), key=lambda i: -len(copies[i].batches))
    training = _Training(model, tunable, [copies[i] for i in order], sgd, clip_norm)
    with model.place.running(f"train.{tunable}", model.manifest.graphs[f"train.{tunable}"], len(copies)):
        training.run()
    params, losses = training.params(), training.mean_losses()
    places = np.argsort(order)
    return TrainedCopies([params[place] for place in places], losses[places])


class _Training:
    """The training of k copies, those with most steps first.

    Batches are padded to the same number of rows; padded rows have weight 0.
    """

    def __init__(
        self, model: TorchModel, tunable: str, copies: Sequence[CopySamples], sgd: Sgd, clip_norm: float
    ) -> None:
        self._copies, self._sgd, self._place = copies, sgd, model.place
        self._clip_norm = clip_norm
        self._module = model.opened("forward").module
        self._sample_losses = model.untuned.loss
        self._specs = model.manifest.specs(tunable)
        self._input, self._target = model.manifest.input, model.manifest.target
        every = model.tensors()
        names = [spec.name for spec in self._specs]
        self._frozen = {name: tensor for name, tensor in every.items() if name not in names}
        self._free = {n: every[n].expand(len(copies), *every[n].shape).clone() for n in names}
        moving = self._free if sgd.momentum else {}
        self._velocity = {name: torch.zeros_like(tensor) for name, tensor in moving.items()}
        self._steps = [len(copy.batches) for copy in copies]
        self._rows = max(len(batch) for copy in copies for batch in copy.batches)
        self._totals = torch.zeros(len(copies), dtype=torch.float64, device=self._place.device)

    def run(self) -> None:
        """Runs all steps."""
        step_of_all = vmap(grad_and_value(self._loss, has_aux=True))
        for step in range(self._steps[0]):
            k = sum(1 for steps in self._steps if steps > step)
            x, y, shares, counts = (self._place.tensor(array) for array in self._batch(step, k))
            free = {name: tensor[:k] for name, tensor in self._free.items()}
            grads, (_, losses) = step_of_all(free, x, y, shares)
            with torch.no_grad():
                self._totals[:k] += (losses * counts).sum(1, dtype=torch.float64)
                if self._clip_norm:
                    self._clip(grads)
                for name, grad in grads.items():
                    self._update(name, free[name], grad)

    def _loss(self, free: dict[str, Tensor], x: Tensor, y: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional_call(self._module, {**self._frozen, **free}, (x,))
        losses = self._sample_losses(logits, y, x)
        return (losses * shares).sum(), losses.detach()

    def _clip(self, grads: dict[str, Tensor]) -> None:
        """Scales each copy's gradient to a norm of at most `clip_norm`, in place, as `clipping.clip` does."""
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads.values()]).norm(dim=0)
        factors = (self._clip_norm / (norms + 1e-6)).clamp(max=1.0)
        for grad in grads.values():
            grad.mul_(factors.view(-1, *[1] * (grad.dim() - 1)))

    def _update(self, name: str, weight: Tensor, grad: Tensor) -> None:
        sgd = self._sgd
        if sgd.weight_decay:
            grad = grad.add(weight, alpha=sgd.weight_decay)
        if sgd.momentum:
            grad = self._velocity[name][: len(weight)].mul_(sgd.momentum).add_(grad)
        weight.sub_(grad, alpha=sgd.lr)

    def _batch(self, step: int, k: int) -> tuple[NDArray[Any], ...]:
        """x (k, rows, *input), y (k, rows, ..), each row's weight in the mean, 1 where its loss counts."""
        copies = self._copies[:k]
        x = np.zeros((k, self._rows, *copies[0].x.shape[1:]), self._input.dtype)
        y = np.zeros((k, self._rows, *copies[0].y.shape[1:]), self._target.dtype)
        shares, counts = np.zeros((k, self._rows), np.float32), np.zeros((k, self._rows), np.float32)
        for i, copy in enumerate(copies):
            batch = copy.batches[step]
            rows = slice(0, len(batch))
            x[i, rows], y[i, rows] = copy.x[batch], copy.y[batch]
            shares[i, rows] = 1 / len(batch)
            counts[i, rows] = step >= copy.counted
        return x, y, shares, counts

    def params(self) -> list[Flat]:
        """The trained tunable set of each copy."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self._free.items()}
        flats = []
        for i in range(len(self._copies)):
            flat = Flat(self._specs)
            for name, view in flat.views.items():
                view[...] = arrays[name][i]
            flats.append(flat)
        return flats

    def mean_losses(self) -> NDArray[np.float64]:
        """Mean loss of each copy, (k,); 0 if no step counts."""
        counts = [sum(len(batch) for batch in copy.batches[copy.counted :]) for copy in self._copies]
        return np.asarray(self._totals.cpu().numpy() / np.maximum(counts, 1))
