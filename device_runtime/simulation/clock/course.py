"""When work is done that is interrupted: by hours in which a device is away, by a link that is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isnan, nan

MOST_WINDOWS = 100
"""Spells of availability that one update may be spread over; then the device is given up."""


@dataclass(frozen=True)
class Busy:
    """Seconds of an update's three parts. Its work is all of them; a share of it is a share of their sum."""

    download_s: float
    compute_s: float
    upload_s: float

    @property
    def all_s(self) -> float:
        return self.download_s + self.compute_s + self.upload_s

    def first(self, share: float) -> Busy:
        """The seconds of each part in the first `share` of the work."""
        left, spent = share * self.all_s, []
        for seconds in (self.download_s, self.compute_s, self.upload_s):
            spent.append(min(seconds, left))
            left -= spent[-1]
        return Busy(*spent)


@dataclass
class Course:
    """One device at work from `now` on. `until(t)` says when it goes away, `back(t)` when it is there again.

    The link is lost after the share `drop` of the work (nan: it is not) and back `away_s` seconds later.
    `gaps` are the times in which nobody hears of the device, (from, to), in the order in which they begin.
    """

    now: float
    until: Callable[[float], float]
    back: Callable[[float], float]
    drop: float = nan
    away_s: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def moment(self, busy: Busy, share: float = 1.0) -> float:
        """When this share of the work is done; inf: never. Without a link only computing goes on."""
        done, before = share * busy.all_s, self.drop * busy.all_s
        if isnan(before) or before >= done:
            return self._after(self.now, done)
        lost = self._after(self.now, before)
        if lost == inf:
            return inf
        again = self.back(lost + self.away_s)
        self.gaps.append((lost, again))
        if again == inf:
            return inf
        computed = busy.download_s + busy.compute_s
        if before < busy.download_s or before >= computed:
            return self._after(again, done - before)
        trained = self._after(lost, min(done, computed) - before)
        return trained if done <= computed else self._after(max(trained, again), done - computed)

    def share_done(self, busy: Busy) -> float:
        """Of work that is never finished: what was done when the device went for the last time."""
        *earlier, (left, _) = self.gaps
        worked_s = left - self.now - sum(end - begin for begin, end in earlier)
        return min(1.0, max(0.0, worked_s / busy.all_s))

    def _after(self, now: float, seconds: float) -> float:
        """When so many seconds of work are done, pausing while the device is not available; inf: never."""
        for _ in range(MOST_WINDOWS):
            left = self.until(now)
            if now + seconds <= left:
                return now + seconds
            seconds -= max(0.0, left - now)
            now = self.back(left)
            self.gaps.append((left, now))
            if now == inf:
                return inf
        return inf
