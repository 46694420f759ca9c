"""Which devices are asked for a round, where not all are: a draw that can be repeated."""

from __future__ import annotations

import numpy as np

from .events import Invite
from .state import State

PURPOSE = 0xC0407
"""Keeps these draws apart from all others of the same seed."""


def draw(state: State, invite: Invite, seed: int) -> tuple[str, ...]:
    """As many devices as are wanted, or as there are, of those that a round may ask; each as likely.

    Of those that are ready, neither asked for this round nor at work on an earlier one. The same for the
    same devices, task `seed`, round, and number of devices that were asked for the round before.
    """
    number = invite.round
    free = sorted(d for d in state.ready if state.asked.get(d) != number and d not in state.behind)
    before = sum(latest == number for latest in state.asked.values())
    rng = np.random.default_rng([seed, PURPOSE, number, before])
    chosen = rng.choice(len(free), size=min(invite.count, len(free)), replace=False)
    return tuple(free[i] for i in chosen)
