"""Reads the samples of a place: for a task, without labels, or as they are stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.errors import DataError
from device_runtime.models.text.texts import Texts

from . import arrays, single, table
from .labels import LabelMap
from .listing import listing
from .local_data import LocalData
from .place import Place
from .shelf import LocalSamples, Selection
from .source import Refused, Skip, WantedSamples, read_file

log = logging.getLogger(__name__)

Stamp = frozenset[tuple[str, int, int]]
"""Files by name, size in bytes, and time of the last change in ns."""


def load(place: Place | Path | str, manifest: Manifest, texts: Texts | None = None) -> LocalData:
    """All samples of a place, prepared for the bundle; see `opened`."""
    return open_samples(place, manifest, texts=texts).training


def open_samples(
    place: Place | Path | str, manifest: Manifest, keep: Selection | None = None, texts: Texts | None = None
) -> LocalSamples:
    """Reads the samples of a place; leaves out unreadable ones and those of other classes, with a warning.

    texts: of the bundle. Raises DataError if nothing is left.
    """
    place = Place.of(place).check()
    shelf = LocalSamples(place, manifest, keep, texts)
    shelf.refresh()
    for skipped in shelf.skipped:
        log.warning("skipped %s", skipped)
    if shelf.doubt:
        log.warning("%s: %s", place, shelf.doubt)
    if not len(shelf.training):
        if count := len(shelf.held):
            raise DataError(
                f"{place}: all samples, {count}, would be held out of training: give --held-out 0"
            )
        if why := "; ".join(str(skipped) for skipped in shelf.skipped[:3]):
            raise DataError(f"no readable samples in {place}: {why}")
        raise DataError(f"no samples in {place}: nothing is there")
    return shelf


def inputs(
    place: Place | Path | str, given: InputSpec, labels: Sequence[str], texts: Texts | None = None
) -> NDArray[Any]:
    """The raw samples of a place without their labels, if any: (n, *input).

    labels: of the task, by which a column of labels is recognised. Raises DataError for anything unreadable.
    """
    place = Place.of(place)
    ending = "" if place.query else place.path.suffix.lower()
    try:
        if ending == ".npz":
            return arrays.inputs(place.path, given)
        if ending in single.DECODERS:
            return single.raw(single.decode_file(read_file(place.path), place.path.name), given, texts)
        if ending in table.ENDINGS:
            place = table.labelled(place, 1 if texts else prod(given.shape))
        place = replace(place, task_labels=LabelMap(labels).names)
        parts = list(_samples(place, WantedSamples(given, place, texts=texts)))
        if not parts:
            raise Refused("no samples")
        return np.concatenate(parts)
    except Refused as error:
        raise DataError(f"{place}: {error}") from None


def _samples(place: Place, wanted: WantedSamples) -> Iterator[NDArray[Any]]:
    """All samples, part by part. Raises Refused for the first file or sample that is not read."""
    found = listing(place)
    for stray in found.strays:
        raise Refused(stray.reason, stray.named)
    for unit in found.units.values():
        for part in unit.source.read(unit, wanted):
            if isinstance(part, Skip):
                raise Refused(part.reason, part.where)
            yield part.x


def raw(place: Place | Path | str) -> Iterator[NDArray[Any]]:
    """The readable samples of a place as they are stored, not prepared for any task: arrays (n, ..)."""
    place = Place.of(place)
    for unit in listing(place).units.values():
        try:
            yield from unit.source.stored(unit, place)
        except Refused as error:
            log.debug("not read: %s: %s", unit.name, error)


def stamp(place: Place | Path | str) -> Stamp:
    """The present files of a place; a file that is changed or removed is missing from later stamps."""
    place = Place.of(place)
    if not place.path.exists():
        return frozenset()
    return frozenset((unit.name, *unit.stamp) for unit in listing(place).units.values())


def check_path(place: Place | Path | str) -> Place:
    """The place if it exists, which can be checked before the task is known. Raises DataError."""
    return Place.of(place).check()
