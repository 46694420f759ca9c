"""A device's samples for its task, and what follows from them: the work of a round, and whose it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from device_runtime.client.policy.privacy_budget import Guard
from device_runtime.client.selection.choose import MAIN
from device_runtime.client.settings import Settings
from device_runtime.models import data as local_data
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.data import Keep, Place
from device_runtime.profiles import Workload
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.training.device_half import LocalData
from device_runtime.strategies.training.workload import workload

log = logging.getLogger(__name__)


class Samples:
    """`training` is trained on, `held` is kept out of it; `loads` by member of the family."""

    def __init__(self, place: Place | Path, bundles: Mapping[str, Bundle], keep: Keep) -> None:
        """Reads them. Raises DataError where none is of the task."""
        self._bundles = bundles
        self._shelf = local_data.opened(place, bundles[MAIN].manifest, keep, bundles[MAIN].texts)

    @property
    def training(self) -> LocalData:
        return self._shelf.training

    @property
    def held(self) -> LocalData:
        return self._shelf.held

    @property
    def loads(self) -> dict[str, Workload]:
        counts = self.training.class_counts(len(self._bundles[MAIN].manifest.labels))
        return {member: workload(one.manifest, counts) for member, one in self._bundles.items()}

    def guard(self, settings: Settings) -> Guard:
        """Of the device with these settings, for what has been read."""
        place, stamp = self._shelf.place, self._shelf.stamp
        return Guard.of(settings.folder, place, settings.owner, stamp, settings.allowed)

    def refresh(self) -> bool:
        """Reads what is new or changed; whether anything is. Raises KindError where nothing is left."""
        changed = self._shelf.refresh()
        if not len(self.training):
            raise KindError(f"no samples are left in {self._shelf.place}")
        if not changed:
            return False
        for skipped in self._shelf.skipped:
            log.info("skipped %s", skipped)
        log.info("%d samples now, %d held out", len(self.training), len(self.held))
        return True
