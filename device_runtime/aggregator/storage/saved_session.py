"""Who is here, for the next life of the aggregator: a round may wait for them."""

from __future__ import annotations

import logging

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.rounds.state import State

from .store import Store

log = logging.getLogger(__name__)


class Remembered:
    """What has changed since it was last on the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._came: set[str] = set()
        self._forgotten: set[str] = set()

    def attend(self, device: str) -> None:
        """It came, went, or is ready."""
        self._came.add(device)

    def forget(self, device: str) -> None:
        """It is away, and need not be known any longer."""
        self._forgotten.add(device)
        self._came.add(device)

    def settle(self, state: State) -> None:
        """Write it; what the disk refuses is written the next time."""
        if not self._came:
            return
        known = {device: state.devices.get(device) for device in self._came}
        here = {device: one.boot for device, one in known.items() if one and one.online and one.ready}
        forgotten = [device for device in self._forgotten if device not in state.asked]
        try:
            self._store.attend(here, self._came - here.keys(), forgotten)
        except RunFolderError as error:
            log.warning("who is here is not on disk: %s", error)
        else:
            self._came.clear()
            self._forgotten.clear()
