"""Trains many copies of one network at once, each with its own weights and samples."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from device_runtime.models.bundles.stacked import StackedCopy
from device_runtime.models.engines.base import even_share
from device_runtime.models.torch_modules.functional_module import (
    Normalised,
    recorded_statistics,
    with_batch_statistics,
)
from device_runtime.models.training.optimizer import Sgd

from .copies import TorchCopies
from .engine import TorchModel
from .steps import CopySamples as CopySamples
from .steps import MicroBatch, Step, planned_steps


@dataclass(frozen=True)
class TrainedCopies:
    """The trained tensors and the loss of each of k copies.

    `tensors`: the trained set with its running statistics, which stays where it was trained. `losses` (k,):
    the mean loss over the samples of the steps that count.
    """

    tensors: list[StackedCopy]
    losses: NDArray[np.float64]


def train_many(
    model: TorchModel, tunable: str, copies: Sequence[CopySamples], sgd: Sgd, clip_norm: float = 0.0
) -> TrainedCopies:
    """Trains one copy of the tunable set for each of `copies` by the bundle's loss, at least one step each.

    clip_norm: the largest norm of a step's gradient; 0: no limit. The result equals that of training one copy
    at a time up to rounding, which may depend on the number of copies. Memory for each copy: three times the
    set, four times with momentum, its samples, and the activations of one batch.
    """
    order = sorted(range(len(copies)), key=lambda i: -len(copies[i].batches))
    with model.place.running(f"train.{tunable}", model.manifest.graphs[f"train.{tunable}"], len(copies)):
        training = _Training(model, tunable, [copies[i] for i in order], sgd, clip_norm)
        training.run()
        trained = training.trained()
    places = np.argsort(order)
    return TrainedCopies([StackedCopy(trained, int(at)) for at in places], training.mean_losses()[places])


class _Training:
    """The training of k copies, those with most steps first.

    A step of a network with batch statistics runs micro-batch by micro-batch, as that of one copy does.
    Micro-batches are padded to the same number of rows. Padded rows have weight 0, also in batch statistics.
    """

    def __init__(
        self, model: TorchModel, tunable: str, copies: Sequence[CopySamples], sgd: Sgd, clip_norm: float
    ) -> None:
        self._copies, self._sgd, self._place = copies, sgd, model.place
        self._clip_norm = clip_norm
        self._x, self._y, self._starts = _pooled(copies, model)
        moved = model.manifest.graphs[f"train.{tunable}"].statistics
        norms = tuple(dict.fromkeys(name.rpartition(".")[0] for name in moved))
        self._subject = with_batch_statistics(model.untuned, norms)
        sizes = (even_share(copy.batch or model.batch, model.batch) for copy in copies)
        self._sizes = list(sizes) if moved else [max(len(b) for b in copy.batches) for copy in copies]
        every, k = model.tensors(), len(copies)
        names = [spec.name for spec in model.manifest.specs(tunable)]
        self._frozen = {name: each for name, each in every.items() if name not in {*names, *moved}}
        self._free = {name: every[name].expand(k, *every[name].shape).clone() for name in names}
        self._statistics = {
            spec.name: every[spec.name].expand(k, *spec.shape).clone()
            for spec in model.manifest.statistics(tunable)
        }
        moving = self._free if sgd.momentum else {}
        self._velocity = {name: torch.zeros_like(tensor) for name, tensor in moving.items()}
        self._totals = torch.zeros(k, dtype=torch.float64, device=self._place.device)

    def run(self) -> None:
        """Runs all steps."""
        for step in planned_steps(self._copies, self._starts, self._sizes, self._place):
            self._step(step)

    def _step(self, step: Step) -> None:
        first, *others = step
        grads = self._run(first)
        for batch in others:
            for name, grad in self._run(batch).items():
                grads[name][batch.at] += grad
        with torch.no_grad():
            if self._clip_norm:
                self._clip(grads)
            for name, grad in grads.items():
                self._update(name, self._free[name][: len(grad)], grad)

    def _run(self, batch: MicroBatch) -> dict[str, Tensor]:
        """The gradients (copies, ..) of what a micro-batch adds to the mean losses of the copies' steps.

        Moves their statistics and totals.
        """
        x, y = (
            samples.index_select(0, batch.rows.flatten()).unflatten(0, batch.rows.shape)
            for samples in (self._x, self._y)
        )
        loss = partial(self._loss, padded=batch.padded)
        free = {name: tensor[batch.at] for name, tensor in self._free.items()}
        old = {name: tensor[batch.at] for name, tensor in self._statistics.items()}
        grads, (_, (losses, moved)) = vmap(grad_and_value(loss, has_aux=True))(free, old, x, y, batch.shares)
        for name, values in moved.items():
            self._statistics[name][batch.at] = values
        self._totals[batch.at] += (losses * batch.counts).sum(1, dtype=torch.float64)
        return dict(grads)

    def _loss(
        self,
        free: dict[str, Tensor],
        statistics: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        shares: Tensor,
        *,
        padded: bool,
    ) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        normalise = partial(_of_rows, (shares > 0).to(x.dtype)) if padded else _fused
        with recorded_statistics(self._subject, normalise) as moved:
            tensors = {**self._frozen, **statistics, **free}
            logits = functional_call(self._subject.module, tensors, (x,))
        losses = self._subject.loss(logits, y, x)
        return (losses * shares).sum(), (losses.detach(), moved)

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

    def trained(self) -> TorchCopies:
        """The trained set and the statistics of all copies."""
        return TorchCopies({**self._free, **self._statistics}, self._place)

    def mean_losses(self) -> NDArray[np.float64]:
        """Mean loss of each copy, (k,); 0 if no step counts."""
        counts = [sum(len(batch) for batch in copy.batches[copy.counted :]) for copy in self._copies]
        return np.asarray(self._totals.cpu().numpy() / np.maximum(counts, 1))


def _pooled(copies: Sequence[CopySamples], model: TorchModel) -> tuple[Tensor, Tensor, list[int]]:
    """x and y of all copies on the processor, and the number of the first sample of each copy."""
    first, place = copies[0], model.place
    if all(copy.x is first.x and copy.y is first.y for copy in copies):
        xs, ys, starts = [first.x], [first.y], [0] * len(copies)
    else:
        xs, ys = [copy.x for copy in copies], [copy.y for copy in copies]
        starts = np.cumsum([0, *map(len, ys[:-1])]).tolist()
    if isinstance(first.x, Tensor) and isinstance(first.y, Tensor):
        return first.x, first.y, starts
    x = xs[0] if len(xs) == 1 else np.concatenate(xs)
    y = ys[0] if len(ys) == 1 else np.concatenate(ys)
    x = model.manifest.input.as_graphs_take(x)
    return place.tensor(x), place.tensor(y.astype(model.manifest.target.dtype, copy=False)), starts


def _fused(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """torch's own batch norm of all rows."""
    y, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
    variance = (rstd.detach() ** -2 - eps).clamp(min=0)
    return y, mean.detach(), variance, x.new_full((), x.numel() // x.shape[1])


def _of_rows(rows: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """Batch norm in which only rows of 1, not those of 0, count; rows: (n,)."""
    axes, per_channel = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    rows = rows.reshape(-1, *[1] * (x.dim() - 1))
    values = rows.sum() * prod(x.shape[2:])
    mean = (x * rows).sum(axes) / values
    centred = (x - mean.reshape(per_channel)) * rows
    variance = (centred * centred).sum(axes) / values
    scale = weight * torch.rsqrt(variance + eps)
    y = centred * scale.reshape(per_channel) + bias.reshape(per_channel)
    return y, mean.detach(), variance.detach(), values
