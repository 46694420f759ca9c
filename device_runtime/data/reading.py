"""Local samples, read for a task or as they are stored, and the files that they are in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from device_runtime.errors import DataError
from models.manifest import Manifest
from models.tokens.texts import Texts
from strategies.device_half import LocalData

from .listing import listing
from .place import Place
from .refusal import Refused
from .shelf import Keep, Shelf

log = logging.getLogger(__name__)

Stamp = frozenset[tuple[str, int, int]]
"""Files by name, size in bytes, and time of the last change in ns."""


def load(place: Place | Path | str, manifest: Manifest, texts: Texts | None = None) -> LocalData:
    """All samples of a place, prepared as the bundle wants them; see `opened`."""
    return opened(place, manifest, texts=texts).training


def opened(
    place: Place | Path | str, manifest: Manifest, keep: Keep | None = None, texts: Texts | None = None
) -> Shelf:
    """The samples of a place, read. What cannot be read, or is of no class of the task, is left out with a
    warning. `texts` are the bundle's. Raises DataError when nothing is left.
    """
    place = Place.of(place).check()
    shelf = Shelf(place, manifest, keep, texts)
    shelf.refresh()
    for skipped in shelf.skipped:
        log.warning("skipped %s", skipped)
    if not len(shelf.training):
        if count := len(shelf.held):
            raise DataError(
                f"{place}: all samples, {count}, would be held out of training: give --held-out 0"
            )
        if why := "; ".join(str(skipped) for skipped in shelf.skipped[:3]):
            raise DataError(f"no readable samples in {place}: {why}")
        raise DataError(f"no samples in {place}: nothing is there")
    return shelf


def raw(place: Place | Path | str) -> Iterator[NDArray[Any]]:
    """Each readable sample of a place as it is stored, before any task's preparation: arrays (n, ..)."""
    place = Place.of(place)
    for unit in listing(place).units.values():
        try:
            yield from unit.source.stored(unit, place)
        except Refused as error:
            log.debug("not read: %s: %s", unit.name, error)


def stamp(place: Place | Path | str) -> Stamp:
    """Of the files of a place, now: one that is later changed or removed is then not among them."""
    place = Place.of(place)
    if not place.path.exists():
        return frozenset()
    return frozenset((unit.name, *unit.stamp) for unit in listing(place).units.values())


def check_path(place: Place | Path | str) -> Place:
    """The place, if there is anything: known before the task is. Raises DataError."""
    return Place.of(place).check()
