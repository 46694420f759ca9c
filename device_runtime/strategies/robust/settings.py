"""Settings of robust merging: the rule, and its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from device_runtime.strategies import settings as ranges
from device_runtime.strategies.settings import Setting

Rule = Literal[
    "none", "median", "weighted-median", "trimmed-mean", "norm-clip", "value-clip", "krum", "multi-krum"
]  # fmt: skip
RULES: tuple[str, ...] = get_args(Rule)
LEAST_DEVICES = 3
"""The least number of updates in a group for a rule to detect false updates."""


Trim = Annotated[
    float,
    Setting("trimmed-mean: share of values ignored at either end.", 0.1, more_than=0, less_than=0.5),
]
Clip = Annotated[
    float | None,
    Setting(
        "norm-clip: longest change that passes; value-clip: largest of a value; none: by clip_factor.",
        example=1.0,
        more_than=0,
    ),
]
ClipFactor = Annotated[
    float, Setting("norm-clip, value-clip: bound as a multiple of the round's median.", 2.0, more_than=0)
]
Byzantine = Annotated[
    int | None,
    Setting(
        "krum, multi-krum: lying devices to withstand; none: the most possible.", 2, "devices", at_least=0
    ),
]


@dataclass(frozen=True)
class Robust:
    """The robust rule of a task, for all kinds of update; "none" is the plain mean.

    trim: the share of values that trimmed-mean ignores at either end, more than 0 and less than 0.5.
    clip: for norm-clip, the largest change of the base that passes (Euclidean, over all tensors). None, and
    for scalars and class means, which do not change the base: clip_factor times the median update's. For
    value-clip, the largest change of any one value, for all kinds; None: clip_factor times the spread of the
    round's values around their median.
    byzantine: how many lying devices krum and multi-krum must withstand; None: as many as they can of the n
    that sent updates, (n - 3) // 2.
    Raises ValueError for numbers outside the limits.
    """

    rule: Rule = "none"
    trim: Trim = 0.2
    clip: Clip = None
    clip_factor: ClipFactor = 1.0
    byzantine: Byzantine = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"no rule of merging is called {self.rule!r}; there are {', '.join(RULES)}")
        ranges.check(self)
