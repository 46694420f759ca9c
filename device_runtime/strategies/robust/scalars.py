"""Bounds scalars along directions that not all devices of a round share: in rounds with late scalars.

The sign of a scalar cannot be checked along directions that no other device measured, but its length can:
lengths along random directions are alike. A device chooses itself with which others it is late or in time, so
all devices that share directions may be lying. Such scalars are therefore bounded by the lengths of all
scalars of the round, the latest of each device. Rules that compare devices reject late scalars of fewer than
three devices, because a lying device could choose to be alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies.interface.device_half import Update

from .coordinate_wise import NORMAL
from .norm_clip import bound_of, clip_to_norm, length_of
from .settings import Robust
from .spool import Spool

BY_LENGTH = frozenset({"norm-clip", "value-clip"})
"""Rules that bound lengths, and so need no other device along the same directions."""


@dataclass(frozen=True)
class ScalarBounds:
    """The largest size of a round's scalars: of each value (`by_value`), or of a device's Euclidean norm.

    devices: how many devices the bound was found from.
    """

    bound: float
    by_value: bool
    devices: int

    def held(self, update: Update, times: float) -> Update:
        """The update clipped to `times` the bound."""
        g, bound = update.tensors["g"], times * self.bound
        if self.by_value:
            return replace(update, tensors={"g": np.clip(g, np.float32(-bound), np.float32(bound))})
        return replace(update, tensors={"g": clip_to_norm(g, np.zeros_like(g), length_of(g), bound)})

    def is_far(self, update: Update, times: float) -> bool:
        """Whether an update exceeds `times` the bound; by value, whether half of its values or more do."""
        g, bound = update.tensors["g"], times * self.bound
        return bool(np.mean(np.abs(g) > bound) >= 0.5) if self.by_value else length_of(g) > bound


def scalar_bounds(every: Iterable[Spool], robust: Robust) -> ScalarBounds:
    """The bounds that `robust` gives for a round, from the latest scalars of each device."""
    latest: dict[str, Vector] = {}
    for spool in sorted(every, key=_round):
        latest |= {row.device: spool.values(row) for row in spool.rows}
    by_value, lengths = robust.rule == "value-clip", [length_of(values) for values in latest.values()]
    if not by_value:
        return ScalarBounds(bound_of(lengths, None, robust.clip_factor), by_value, len(latest))
    spread = NORMAL * float(np.median(np.abs(np.concatenate(list(latest.values())))))
    bound = robust.clip_factor * spread if robust.clip is None else robust.clip
    return ScalarBounds(bound, by_value, len(latest))


def _round(spool: Spool) -> float:
    """The round that a spool's scalars were made for; infinite for the open round."""
    late = spool.rows[0].metadata.late
    return inf if late is None else late.round
