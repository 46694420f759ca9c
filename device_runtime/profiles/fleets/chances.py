"""What may befall a device that is asked: a busy processor, a poor link, a crash, a lost link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .groups import Group

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Chances:
    """For each of k asked devices, float64 (k,).

    `slowdown` is actual over predicted compute seconds; `uplink` and `downlink` multiply the bandwidth.
    `crash` and `drop` are the share of the work, in (0, 1), after which the process dies or the link is
    lost; nan: it does not. `away_s`: seconds until a crashed or dropped device is back.
    """

    slowdown: Floats
    uplink: Floats
    downlink: Floats
    crash: Floats
    drop: Floats
    away_s: Floats


@dataclass(frozen=True, eq=False)
class Odds:
    """How likely, by group: float64 (6, groups), in the order of `of`."""

    table: Floats

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Odds:
        rows = [(g.speed.jitter, g.link.jitter, g.failures.away_sigma) for g in groups]
        chances = [(g.failures.away_s, g.failures.crash, g.failures.drop) for g in groups]
        table = np.concatenate([np.array(rows, np.float64), np.array(chances, np.float64)], axis=1)
        return cls(table.T.copy())

    def draw(self, groups: NDArray[np.integer], rng: np.random.Generator) -> Chances:
        """For k devices of these groups (k,). Always takes 8 * k numbers of `rng`, whatever can happen."""
        load, link, away_sigma, away_s, crash, drop = self.table[:, groups]
        normal = rng.standard_normal((4, len(groups)))
        even = rng.random((4, len(groups)))
        share = np.maximum(even[2:], 2.0**-53)
        return Chances(
            slowdown=np.exp(load * normal[0]),
            uplink=np.exp(link * normal[1]),
            downlink=np.exp(link * normal[2]),
            crash=np.where(even[0] < crash, share[0], np.nan),
            drop=np.where(even[1] < drop, share[1], np.nan),
            away_s=away_s * np.exp(away_sigma * normal[3]),
        )
