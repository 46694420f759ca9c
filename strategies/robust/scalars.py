"""Scalars along directions that too few share to be compared: late ones, and those of a small group.

Which way a scalar points says nothing along directions that nobody else measured, how long it is does: along
random directions all are alike. Such scalars are held to the lengths of all scalars of the round. Rules that
take one device's word against another's cannot, and leave them out: a liar could choose to be alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from models.tensors import Vector
from strategies.kind import AnyStrategy, Contribution
from strategies.zeroth_order import ZerothOrder

from .norm_clip import bound_of, clipped, norms
from .settings import FEW, Robust
from .spool import Row, Spool
from .value_clip import NORMAL

BY_LENGTH = frozenset({"norm-clip", "value-clip"})
"""Rules that need no other device along the same directions."""


def is_apart(told: Contribution, strategy: AnyStrategy) -> bool:
    """Whether there are other scalars of the kind in this round, along other directions."""
    return isinstance(strategy, ZerothOrder) and (told.late is not None or strategy.groups > 1)


def held(few: Spool, every: Sequence[Spool], robust: Robust) -> Iterator[tuple[Row, Vector]]:
    """The updates of `few`, held by a rule of BY_LENGTH to what is usual in `every`, which has `few` too."""
    if robust.rule == "norm-clip":
        usual = bound_of(np.concatenate([norms(spool) for spool in every]), None, robust.clip_factor)
        for row, length in zip(few.rows, norms(few), strict=True):
            yield row, clipped(few.values(row), few.starts, float(length), usual)
        return
    bound = robust.clip
    if bound is None:
        values = np.concatenate([spool.values(row) for spool in every for row in spool.rows])
        bound = robust.clip_factor * NORMAL * float(np.median(np.abs(values)))
    for row in few.rows:
        yield row, np.clip(few.values(row), np.float32(-bound), np.float32(bound))


def why_not(robust: Robust, strategy: AnyStrategy, contributions: int) -> str:
    """Why a rule makes no sense for a kind with at least so many contributions a round; empty if it does."""
    groups = strategy.groups if isinstance(strategy, ZerothOrder) else 1
    if robust.rule == "none" or robust.rule in BY_LENGTH or groups == 1 or contributions >= FEW * groups:
        return ""
    return (
        f"{robust.rule} compares devices along the same directions, and {strategy.name} has {groups} groups: "
        f"it needs min_contributions of {FEW * groups} or more, which is {contributions}; "
        f"{' and '.join(sorted(BY_LENGTH))} need none"
    )
