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
    Setting(
        "Ignore this share of the values at either end, with trimmed-mean.",
        0.1,
        more_than=0,
        less_than=0.5,
        metavar="SHARE",
    ),
]
Clip = Annotated[
    float | None,
    Setting(
        "Clip longer changes, with norm-clip, or larger values, with value-clip.",
        example=1.0,
        more_than=0,
        none="by the clip factor",
        metavar="NORM",
    ),
]
ClipFactor = Annotated[
    float, Setting("Clip at X times the round's median, with norm-clip and value-clip.", 2.0, more_than=0)
]
Byzantine = Annotated[
    int | None,
    Setting(
        "Withstand this many lying devices, with krum and multi-krum.",
        2,
        "devices",
        at_least=0,
        none="the most possible",
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
