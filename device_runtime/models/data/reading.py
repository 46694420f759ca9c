"""Reads the samples of a source without labels, or as they are stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec, Texts
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec
from device_runtime.models.errors import DataError, ModelError

from . import arrays, single, table
from .cells import NO_LABEL_COLUMN, column_values
from .labels import LabelMap
from .listing import listing
from .local_samples import for_task
from .model_check import MOST
from .row_reader import WindowCutter
from .sample_source import SampleSource
from .units import RawSamples, Refused, Skip, SkippedTally, WantedSamples, read_file, refusing

log = logging.getLogger(__name__)

Stamp = frozenset[tuple[str, int, int]]
"""Files by name, size in bytes, and time of the last change in ns; a changed file gets a new entry."""


def inputs(
    source: SampleSource | Path | str,
    spec: InputSpec,
    labels: Sequence[str],
    texts: Texts | None = None,
    target: TargetSpec = CROSS_ENTROPY,
) -> NDArray[Any]:
    """The raw samples of a source without labels or targets, (n, *input); of a recording, its windows.

    labels, target: the task's, used to detect the columns of labels. Raises DataError for anything
    unreadable.
    """
    source = SampleSource.of(source)
    ending = "" if source.query else source.path.suffix.lower()
    try:
        with refusing():
            if ending == ".npz":
                return arrays.inputs(source.path, spec)
            if ending in single.DECODERS:
                return single.raw(single.decode_file(read_file(source.path), source.path.name), spec, texts)
            source = for_task(source, LabelMap(labels), target, texts is not None)
            if ending in table.ENDINGS and WindowCutter.of(spec) is None:
                source = table.labelled(source, source.path, spec, texts is not None)
        if target.has_columns and WindowCutter.of(spec) is not None:  # none is needed
            source = replace(source, label_column=NO_LABEL_COLUMN)
        parts = [part.x for part in _parts(source, WantedSamples(spec, source, texts=texts))]
        if not parts:
            raise Refused("no samples")
        return np.concatenate(parts)
    except Refused as error:
        raise DataError(f"{source}: {error}") from None


def unlabelled(source: SampleSource, manifest: Manifest, texts: Texts | None = None) -> NDArray[Any]:
    """The readable samples of a source, with labels or not, prepared (n, *input); at most MOST."""
    source = replace(for_task(source, None, manifest.target, texts is not None), unlabelled=True)
    request = WantedSamples(manifest.input, source, texts=texts)
    samples: list[NDArray[Any]] = []
    for unit in listing(source).units.values():
        try:
            parts = unit.read(request)
            samples += [manifest.input.prepare(part.x) for part in parts if not isinstance(part, Skip)]
        except (Refused, ModelError) as error:
            log.debug("not read: %s: %s", unit.name, error)
        if sum(map(len, samples)) >= MOST:
            break
    empty = np.empty((0, *manifest.input.shape), manifest.input.dtype)
    return np.concatenate([empty, *samples])[:MOST]


def target_values(
    source: SampleSource | Path | str, spec: InputSpec, target: TargetSpec
) -> NDArray[np.float64]:
    """The targets of a source's samples in original units, (n, columns).

    Raises DataError for anything unreadable.
    """
    source = for_task(SampleSource.of(source), None, target)
    try:
        parts = [part.labels for part in _parts(source, WantedSamples(spec, source))]
        rows = [y if isinstance(y, np.ndarray) else _numbers(y or (), target) for y in parts]
        if not rows:
            raise Refused("no samples")
        return np.concatenate([row.reshape(len(row), -1) for row in rows]).astype(np.float64)
    except (Refused, ValueError) as error:
        raise DataError(f"{source}: {error}") from None


def _numbers(texts: Sequence[str], target: TargetSpec) -> NDArray[np.float64]:
    return np.array([column_values(text, target.columns) for text in texts])


def _parts(source: SampleSource, request: WantedSamples) -> Iterator[RawSamples]:
    """All samples, part by part. Raises Refused for the first file or sample that is not read.

    Only a recording may have rows that are not read, and stretches without a window, if it has other windows.
    """
    contents, recorded = listing(source), WindowCutter.of(request.input) is not None
    for stray in contents.strays:
        raise Refused(stray.reason, stray.named)
    for unit in contents.units.values():
        skipped, windows = SkippedTally(), 0
        for part in unit.read(request):
            if not isinstance(part, Skip):
                windows += len(part.x)
                yield part
            elif recorded:
                skipped.add(part)
            else:
                raise Refused(part.reason, part.where)
        for entry in skipped:
            if not windows:
                raise Refused(entry.reason, entry.named)
            log.warning("skipped %s", entry)


def raw(source: SampleSource | Path | str) -> Iterator[NDArray[Any]]:
    """The readable samples of a source as they are stored, not prepared for any task: arrays (n, ..)."""
    source = SampleSource.of(source)
    for unit in listing(source).units.values():
        try:
            yield from unit.stored(source)
        except (Refused, MemoryError) as error:
            log.debug("not read: %s: %s", unit.name, error)


def stamp(source: SampleSource | Path | str) -> Stamp:
    """The present files of a source; a file that is changed or removed is missing from later stamps."""
    source = SampleSource.of(source)
    if not source.path.exists():
        return frozenset()
    return frozenset((unit.name, *unit.stamp) for unit in listing(source).units.values())
