"""Which rule stands between the updates of a round and their mean, and with which numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

Rule = Literal[
    "none", "median", "weighted-median", "trimmed-mean", "norm-clip", "value-clip", "krum", "multi-krum"
]  # fmt: skip
RULES: tuple[str, ...] = get_args(Rule)
FEW = 3
"""Updates of one sort, with fewer of which no rule can tell a lie from the truth."""


@dataclass(frozen=True)
class Robust:
    """A rule for all kinds of update of a task; "none" is the plain mean.

    trim: the share of values that trimmed-mean leaves out at either end, more than 0 and less than 0.5.
    clip: the longest change of the base that norm-clip lets pass (Euclidean, over all tensors); None, and
    for scalars and class means, which change no base: that of the round's median update, times clip_factor.
    To value-clip it is the largest change of any one value, for all kinds; None: clip_factor times the
    spread of the round's values of that place, about their median.
    byzantine: how many lying devices krum and multi-krum are to stand; None: as many as they can of those
    that sent updates, (n - 3) // 2.
    Raises ValueError for other numbers.
    """

    rule: Rule = "none"
    trim: float = 0.2
    clip: float | None = None
    clip_factor: float = 1.0
    byzantine: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"no rule of merging is called {self.rule!r}; there are {', '.join(RULES)}")
        if not 0 < self.trim < 0.5:
            raise ValueError(f"trim is {self.trim}, expected more than 0 and less than 0.5")
        for name, value in (("clip", self.clip), ("clip_factor", self.clip_factor)):
            if value is not None and not (isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}, expected a finite number above 0")
        if self.byzantine is not None and self.byzantine < 0:
            raise ValueError(f"byzantine is {self.byzantine}, expected 0 or more")
