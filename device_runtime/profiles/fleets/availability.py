"""When devices are available: one or two windows a day for each, in closed form.

Windows begin and end on whole seconds, so that the answers are exact: a device is not available at its
`until` and is available at its `next`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

DAY = 86_400
"""Seconds."""


@dataclass(frozen=True, eq=False)
class Availability:
    """Daily windows of n devices, on the run's clock; `t` is in seconds since the run began.

    `windows` is int32 (n, 4), as `normalised_windows` makes it: start and length of the first window, then of
    the second, in seconds. A device with a length of 86,400 is always available, one with two lengths of 0
    never.
    """

    windows: NDArray[np.int32]

    def available(self, i: int, t: float) -> bool:
        start, length, again, more = self.windows[i].tolist()
        now = floor(t)
        return bool((now - start) % DAY < length or (now - again) % DAY < more)

    def until(self, i: int, t: float) -> float:
        """The time at which device i leaves again: inf for never, `t` if it is not available now."""
        start, length, again, more = self.windows[i].tolist()
        if length == DAY:
            return inf
        now = floor(t)
        since = (now - start) % DAY
        if since < length:
            return float(now - since + length)
        since = (now - again) % DAY
        return float(now - since + more) if since < more else t

    def next(self, i: int, t: float) -> float:
        """The next time at which device i is available: `t` if it is now, inf for never."""
        if self.available(i, t):
            return t
        start, length, again, more = self.windows[i].tolist()
        if not length:
            return inf
        now = ceil(t)
        wait = (start - now) % DAY
        return float(now + (min(wait, (again - now) % DAY) if more else wait))

    def present(self, t: float) -> NDArray[np.bool_]:
        """Which of the n devices are available, bool (n,)."""
        since = (floor(t) - self.windows[:, 0::2]) % DAY
        return np.asarray((since < self.windows[:, 1::2]).any(axis=1))


def normalised_windows(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Normalises one or two windows of each device into the form of `Availability.windows`.

    `starts` and `lengths` are seconds, (n, 1) or (n, 2). Windows that overlap or touch become one; an empty
    window comes after one that is not empty.
    """
    if starts.shape[1] == 1:
        starts, lengths = np.repeat(starts, 2, axis=1), np.pad(lengths, ((0, 0), (0, 1)))
    first, second = starts.T % DAY
    first_length, second_length = lengths.T.clip(0, DAY)
    ahead, behind = (second - first) % DAY, (first - second) % DAY
    both = (first_length > 0) & (second_length > 0)
    reached = both & (ahead <= first_length)
    reaching = both & ~reached & (behind <= second_length)
    swapped = reaching | (first_length == 0)
    result = np.stack([first, first_length, second, second_length], axis=1)
    result[swapped] = np.stack([second, second_length, first, first_length], axis=1)[swapped]
    result[reached, 1] = np.maximum(first_length, ahead + second_length)[reached]
    result[reaching, 1] = np.maximum(second_length, behind + first_length)[reaching]
    result[reached | reaching, 3] = 0
    result[:, 1] = result[:, 1].clip(0, DAY)
    return result.astype(np.int32)
