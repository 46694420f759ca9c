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
from torch.func import functional_call, grad, grad_and_value, vmap

from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.stacked import StackedCopy
from device_runtime.models.engines.base import even_share
from device_runtime.models.errors import EngineError
from device_runtime.models.torch_modules.functional_module import (
    Normalised,
    recorded_statistics,
    with_batch_statistics,
)
from device_runtime.models.torch_modules.objectives import SAMPLE_LOSSES, ObjectiveBatch
from device_runtime.models.training.optimizer import Optimizer

from .copies import TorchCopies
from .copy_steps import PrivateSums, Pulls, StackedSgd, clip, start
from .engine import TorchModel
from .place import TorchProcessor
from .recording import RECORDED_FROM, StepPlayer, recorder_of
from .steps import CopySamples as CopySamples
from .steps import MicroBatch, Step, planned_steps

PRIVATE_VALUES = 1 << 24
"""The most values, 64 MiB, in the gradients of single samples; one sample of each copy is always held."""


def can_train(objective: str) -> bool:
    """Whether copies can be trained together by this objective of a bundle."""
    return objective == "train" or objective in SAMPLE_LOSSES


@dataclass(frozen=True)
class TrainedCopies:
    """The trained tensors and the loss of each of k copies.

    `tensors`: the trained set with its running statistics, which stays where it was trained. `losses` (k,):
    the mean loss over the samples of the steps that count.
    """

    tensors: list[StackedCopy]
    losses: NDArray[np.float64]


def train_many(
    model: TorchModel,
    tunable: str,
    copies: Sequence[CopySamples],
    optimizer: Optimizer,
    clip_norm: float = 0.0,
    objective: str = "train",
) -> TrainedCopies:
    """Trains one copy of the tunable set for each of `copies`, at least one step each.

    objective: one of `can_train`, by default the bundle's loss. clip_norm: the largest norm of a step's
    gradient; 0: no limit. Either all copies are private or none is; the loss of private ones is nan. The
    result equals that of training one copy at a time up to rounding, which may depend on the number of
    copies. Memory for each copy: three times the set, four times with momentum, five times with Adam, its
    samples, and the activations of one batch; all private ones together take PRIVATE_VALUES in addition.
    Raises EngineError.
    """
    order = sorted(range(len(copies)), key=lambda i: -len(copies[i].batches))
    name = f"{objective}.{tunable}"
    with model.place.running(name, model.manifest.graphs[name], len(copies)):
        training = _Training(model, name, [copies[i] for i in order], optimizer, clip_norm)
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
        self,
        model: TorchModel,
        name: str,
        copies: Sequence[CopySamples],
        optimizer: Optimizer,
        clip_norm: float,
    ) -> None:
        """name: of the graph."""
        self._copies, self._place, self._clip_norm = copies, model.place, clip_norm
        self._objective, _, tunable = name.partition(".")
        self._x, self._y, self._starts = _pooled(copies, model)
        graph = model.manifest.graphs[name]
        self._by_sample, self._by_copy = _pooled_extras(copies, graph, model.place)
        moved = graph.statistics
        norms = tuple(dict.fromkeys(name.rpartition(".")[0] for name in moved))
        self._subject = with_batch_statistics(model.untuned, norms)
        sizes = (even_share(copy.batch or model.batch, model.batch) for copy in copies)
        self._sizes = list(sizes) if moved else [max(len(b) for b in copy.batches) for copy in copies]
        every, k = model.tensors(), len(copies)
        tuned = {spec.name for spec in model.manifest.specs(tunable)}
        names = [spec.name for spec in model.manifest.stored() if spec.name in tuned]
        self._frozen = {name: each for name, each in every.items() if name not in {*names, *moved}}
        self._free = {name: every[name].expand(k, *every[name].shape).clone() for name in names}
        self._statistics = {
            spec.name: every[spec.name].expand(k, *spec.shape).clone()
            for spec in model.manifest.statistics(tunable)
        }
        self._optimizer = start(optimizer, self._free)
        self._pulls = Pulls([copy.anchors for copy in copies], self._place)
        self._private = self._private_sums()
        self._totals = torch.zeros(k, dtype=torch.float64, device=self._place.device)

    def run(self) -> None:
        """Runs all steps, those that can be recorded with the same number of rows."""
        recorder = recorder_of(self._place) if self._may_be_recorded else None
        even = recorder is not None and not self._statistics
        steps = planned_steps(self._copies, self._starts, self._sizes, self._place, even)
        StepPlayer(self._step, recorder).run(steps)

    @property
    def _may_be_recorded(self) -> bool:
        """Whether a step does the same each time: Adam counts them, and noise is drawn by the host."""
        repeats = isinstance(self._optimizer, StackedSgd) and self._private is None
        return repeats and len(self._copies[0].batches) >= RECORDED_FROM

    def _step(self, step: Step) -> None:
        first, *others = step
        grads = self._run(first)
        for batch in others:
            for name, more in self._run(batch).items():
                grads[name][batch.at] += more
        with torch.no_grad():
            if self._private is not None:
                self._private.finish(grads)
            self._pulls.add(self._free, grads)
            if self._clip_norm:
                clip(grads, self._clip_norm)
            self._optimizer.step(self._free, grads)

    def _private_sums(self) -> PrivateSums | None:
        privacies = [copy.privacy for copy in self._copies if copy.privacy is not None]
        if not privacies:
            return None
        if len(privacies) < len(self._copies) or self._statistics:
            raise EngineError("private steps need privacy in all copies, and no batch statistics")
        values = sum(tensor.numel() for tensor in self._free.values())
        self._sizes = [max(1, PRIVATE_VALUES // values)] * len(privacies)
        return PrivateSums(privacies, [copy.lot for copy in self._copies], self._place)

    def _run(self, batch: MicroBatch) -> dict[str, Tensor]:
        """The gradients (copies, ..) of what a micro-batch adds to the mean losses of the copies' steps.

        Moves their statistics and totals.
        """
        x, y = (
            samples.index_select(0, batch.rows.flatten()).unflatten(0, batch.rows.shape)
            for samples in (self._x, self._y)
        )
        extras = {name: value[batch.rows] for name, value in self._by_sample.items()}
        extras |= {name: value[batch.at] for name, value in self._by_copy.items()}
        free = {name: tensor[batch.at] for name, tensor in self._free.items()}
        if self._private is not None:
            places = {name: 0 if name in self._by_sample else None for name in extras}
            each = vmap(vmap(grad(self._of_sample), (None, 0, 0, places)))(free, x, y, extras)
            return self._private.clipped(each, batch.shares > 0, batch.at)
        old = {name: tensor[batch.at] for name, tensor in self._statistics.items()}
        loss = partial(self._loss, padded=batch.padded)
        grads, (_, (losses, moved)) = vmap(grad_and_value(loss, has_aux=True))(
            free, old, x, y, extras, batch.shares
        )
        for name, values in moved.items():
            self._statistics[name][batch.at] = values
        self._totals[batch.at] += (losses * batch.counts).sum(1, dtype=torch.float64)
        return _apart(grads)

    def _loss(
        self,
        free: dict[str, Tensor],
        statistics: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        extras: dict[str, Tensor],
        shares: Tensor,
        *,
        padded: bool,
    ) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        normalise = partial(_of_rows, (shares > 0).to(x.dtype)) if padded else _fused
        with recorded_statistics(self._subject, normalise) as moved:
            losses = self._losses(x, y, extras, {**self._frozen, **statistics, **free})
        return (losses * shares).sum(), (losses.detach(), moved)

    def _losses(self, x: Tensor, y: Tensor, extras: dict[str, Tensor], tensors: dict[str, Tensor]) -> Tensor:
        if of_samples := SAMPLE_LOSSES.get(self._objective):
            return of_samples(ObjectiveBatch(self._subject, x, y, extras, tensors))
        return self._subject.loss(functional_call(self._subject.module, tensors, (x,)), y, x)

    def _of_sample(self, free: dict[str, Tensor], x: Tensor, y: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """The loss of one sample: x (*input), y and extras by sample without the axis of samples."""
        rows = {name: value[None] if name in self._by_sample else value for name, value in extras.items()}
        return self._losses(x[None], y[None], rows, {**self._frozen, **free}).sum()

    def trained(self) -> TorchCopies:
        """The trained set and the statistics of all copies."""
        return TorchCopies({**self._free, **self._statistics}, self._place)

    def mean_losses(self) -> NDArray[np.float64]:
        """Mean loss of each copy, (k,); 0 if no step counts, nan if private."""
        if self._private is not None:
            return np.full(len(self._copies), np.nan)
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


def _apart(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients that can be changed in place: those of two biases that are added up are one tensor."""
    memory: set[int] = set()
    own = {}
    for name, each in grads.items():
        start = each.untyped_storage().data_ptr()
        own[name] = each if each.is_contiguous() and start not in memory else each.clone()
        memory.add(start)
    return own


def _pooled_extras(
    copies: Sequence[CopySamples], graph: Graph, place: TorchProcessor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The other inputs of a graph: those by sample, of the samples of all copies, and those by copy."""
    by_sample, by_copy = {}, {}
    for extra in graph.extras:
        values = [copy.extras[extra.name] for copy in copies]
        if extra.per_sample:
            by_sample[extra.name] = place.tensor(np.concatenate(values))
        else:
            by_copy[extra.name] = place.tensor(np.stack(values))
    return by_sample, by_copy


def _fused(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """torch's own batch norm of all rows, in float32."""
    x = x.float()
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
