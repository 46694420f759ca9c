"""Which updates of a round are of one sort, and can be compared with each other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.training.device_half import Contribution
from device_runtime.strategies.training.tensor_update import FEW_SHOT
from device_runtime.strategies.zeroth_order import ZerothOrder

from . import by_class
from .spool import Start, signature, start_in

FROM_ZERO = {ZerothOrder.name: frozenset({"g"}), ClassMeans.name: frozenset({by_class.MEANS})}
"""Tensors that are no change of the base, by kind: they are compared as they are."""


@dataclass(frozen=True)
class Sorted:
    """An update as it is compared with others: with those of the same `sort`, from `start`."""

    sort: Hashable
    update: Contribution
    start: Start


def sorted_out(contribution: Contribution, member: str, base: Tensors) -> Sorted:
    """By kind, the member of the family that it is of, and its tensors; scalars also by the round whose
    directions they are along. `base` is the member's.
    """
    kind = contribution.kind
    update = by_class.as_means(contribution) if kind == ClassMeans.name else contribution
    start = start_in(base, FEW_SHOT, FROM_ZERO.get(kind, frozenset()))
    along = contribution.late if kind == ZerothOrder.name else None
    return Sorted((kind, member, along, signature(update.tensors, start)), update, start)
