"""The presence of a simulated fleet: every device is online until something else is heard of it.

Both views are persistent, as the collections of `aggregator.machine.state`, and keep only the devices of
which something was heard. A name is taken for that of a device of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.machine.state import Presence
from device_runtime.profiles.fleets.fleet import Fleet

ONLINE = Presence(0, online=True)


class FleetPresence(Mapping[str, Presence]):
    """The presence of each device by name."""

    def __init__(self, fleet: Fleet, presences: HashTrieMap[str, Presence] | None = None) -> None:
        """`presences`: of the devices of which something was heard."""
        self._fleet = fleet
        self._presences: HashTrieMap[str, Presence] = HashTrieMap() if presences is None else presences

    def __getitem__(self, device: str) -> Presence:
        return self._presences.get(device, ONLINE)

    def get(self, device: str, default: Any = None) -> Presence:
        """The presence of this device; `default` has no effect, as all have one."""
        return self._presences.get(device, ONLINE)

    def __contains__(self, device: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return map(self._fleet.name, range(len(self._fleet)))

    def __len__(self) -> int:
        return len(self._fleet)

    def insert(self, device: str, presence: Presence) -> FleetPresence:
        return FleetPresence(self._fleet, self._presences.insert(device, presence))

    def discard(self, device: str) -> FleetPresence:
        """Raises NotImplementedError: a simulation forgets no device."""
        raise NotImplementedError(f"{device} cannot be forgotten: it is one of a simulated fleet")


class ReadyFleet(Set[str]):
    """The devices that a round may wait for: all but those `away`.

    trains: which of the fleet's devices take part, bool (n,); None: all.
    """

    def __init__(
        self, fleet: Fleet, away: HashTrieSet[str] | None = None, trains: NDArray[np.bool_] | None = None
    ) -> None:
        self._fleet, self._trains = fleet, trains
        self._count = len(fleet) if trains is None else int(trains.sum())
        self._away: HashTrieSet[str] = HashTrieSet() if away is None else away

    def __contains__(self, device: object) -> bool:
        return device not in self._away

    def __iter__(self) -> Iterator[str]:
        every = range(len(self._fleet)) if self._trains is None else np.flatnonzero(self._trains).tolist()
        names = map(self._fleet.name, every)
        return (name for name in names if name not in self._away)

    def __len__(self) -> int:
        return self._count - len(self._away)

    def insert(self, device: str) -> ReadyFleet:
        return ReadyFleet(self._fleet, self._away.discard(device), self._trains)

    def discard(self, device: str) -> ReadyFleet:
        return ReadyFleet(self._fleet, self._away.insert(device), self._trains)
