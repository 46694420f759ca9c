"""Whom we know by name. On an open broker anybody may come under any name: only so many are remembered.

Where there is no more room, of those that are away the one that was heard longest ago is forgotten; while all
are here, nobody else is let in. Enrolment keeps strangers out altogether.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

MOST_DEVICES = 100_000
"""That are known at a time, and contributions that a round takes, where the settings say nothing."""
LOOKED_AT = 100
"""Devices that are looked at for one that is away, when another comes."""


class Crowd:
    """`away` says whether a device may be forgotten, `forget` is told of one that is."""

    def __init__(self, away: Callable[[str], bool], forget: Callable[[str], object], most: int) -> None:
        self._away, self._forget, self._most = away, forget, most
        self._known: OrderedDict[str, None] = OrderedDict()
        self._refused, self._said_at = 0, 1

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, devices: Iterable[str]) -> None:
        """Those that are known from before, however many."""
        self._known.update(dict.fromkeys(devices))

    def lets_in(self, device: str) -> bool:
        """A device is heard: whether it is known from now on."""
        if device in self._known:
            self._known.move_to_end(device)
            return True
        if len(self._known) >= self._most and not self._made_room():
            self._refuse(device)
            return False
        self._known[device] = None
        return True

    def _made_room(self) -> bool:
        for _ in range(min(LOOKED_AT, len(self._known))):
            device = next(iter(self._known))
            if self._away(device):
                del self._known[device]
                self._forget(device)
                return True
            self._known.move_to_end(device)
        return False

    def _refuse(self, device: str) -> None:
        """Said of the first, the tenth, the hundredth: strangers have no end of names."""
        self._refused += 1
        if self._refused < self._said_at:
            return
        self._said_at *= 10
        log.warning(
            "%d messages of others than the %d devices that are known are dropped, the last from %s: "
            "enrol devices to keep strangers out",
            self._refused,
            len(self._known),
            device,
        )
