"""What a device's owner asks of the device's own model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PersonalWish:
    """`keep` the served model after each round; `held_out`: the share of samples that are not trained on but
    judge it, None for the usual one (`data.Keep`); `head`: train a head of one's own, and use it where it is
    better on those.
    """

    keep: bool = False
    held_out: float | None = 0.0
    head: bool = False
