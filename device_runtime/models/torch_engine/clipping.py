"""Gradients of single samples, many in one call, each clipped and all summed up: DP-SGD in torch."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from torch.func import grad, vmap

from device_runtime.models.export.subject import Subject

from .gradients import Inputs
from .objectives import OBJECTIVES, Given

AT_ONCE = 1 << 24
"""Values of gradients held at once, 64 MiB: of as many samples as that is, and of one at least."""


class ClippedSums:
    """Of one objective of a module, which vmap must be able to run: not every module is such."""

    def __init__(self, subject: Subject, objective: str, rows: Collection[str]) -> None:
        """rows: the extras that have one row for each sample."""
        self._subject, self._objective, self._rows = subject, objective, rows

    def add(self, inputs: Inputs, max_norm: float, totals: Mapping[str, Tensor]) -> None:
        """Adds each sample's gradient, scaled to a norm of at most `max_norm`, to `totals`, by name.

        A sample whose gradient has no finite norm adds nothing.
        """
        at_once = max(1, AT_ONCE // sum(total.numel() for total in totals.values()))
        for start in range(0, len(inputs.y), at_once):
            self._add(self._cut(inputs, slice(start, start + at_once)), max_norm, totals)

    def _cut(self, inputs: Inputs, part: slice) -> Inputs:
        extras = {name: value[part] if name in self._rows else value for name, value in inputs.extras.items()}
        return Inputs(inputs.x[part], inputs.y[part], extras, inputs.tensors)

    def _add(self, inputs: Inputs, max_norm: float, totals: Mapping[str, Tensor]) -> None:
        free = {name: inputs.tensors[name].detach() for name in totals}
        frozen = {name: tensor for name, tensor in inputs.tensors.items() if name not in totals}

        def loss(values: Mapping[str, Tensor], x: Tensor, y: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
            one = {name: value[None] if name in self._rows else value for name, value in extras.items()}
            given = Given(self._subject, x[None], y[None], one, {**frozen, **values})
            return OBJECTIVES[self._objective].loss(given)

        places = {name: 0 if name in self._rows else None for name in inputs.extras}
        each = vmap(grad(loss), in_dims=(None, 0, 0, places))(free, inputs.x, inputs.y, inputs.extras)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        finite = norms.isfinite()
        factors = (max_norm / norms[finite]).clamp(max=1)
        whole = bool(finite.all())
        for name, total in totals.items():
            total.add_(torch.tensordot(factors, each[name] if whole else each[name][finite], 1))
