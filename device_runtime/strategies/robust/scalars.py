"""Scalars along directions that not all of a round share: late ones and those beside them.

Which way a scalar points says nothing along directions that nobody else measured, how long it is does: along
random directions all are alike. With whom it is late, or in time, a device chooses itself: all that share
directions may be liars. So such scalars are held to the lengths of all of the round, of which each device has
one, that of its latest. Rules that take one device's word against another's leave out late ones of
fewer than three devices: a liar could choose to be alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies.training.device_half import TrainedUpdate

from .coordinate_wise import NORMAL
from .norm_clip import bound_of, clipped, length_of
from .settings import Robust
from .spool import Spool

BY_LENGTH = frozenset({"norm-clip", "value-clip"})
"""Rules that need no other device along the same directions."""


@dataclass(frozen=True)
class ScalarBounds:
    """How far scalars of a round are to be from 0: each of them, or all of a device together (`by_value`).

    `devices` are so many as it was found from.
    """

    bound: float
    by_value: bool
    devices: int

    def held(self, update: TrainedUpdate, times: float) -> TrainedUpdate:
        """No further than so many times that."""
        g, bound = update.tensors["g"], times * self.bound
        if self.by_value:
            return replace(update, tensors={"g": np.clip(g, np.float32(-bound), np.float32(bound))})
        return replace(update, tensors={"g": clipped(g, np.zeros_like(g), length_of(g), bound)})

    def is_far(self, update: TrainedUpdate, times: float) -> bool:
        """Whether it is further: of single values, half of them or more."""
        g, bound = update.tensors["g"], times * self.bound
        return bool(np.mean(np.abs(g) > bound) >= 0.5) if self.by_value else length_of(g) > bound


def usual(every: Iterable[Spool], robust: Robust) -> ScalarBounds:
    """By `robust`, of all scalars of a round: the latest of each device."""
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
    """That its scalars were made for: the open one is later than any."""
    late = spool.rows[0].told.late
    return inf if late is None else late.round
