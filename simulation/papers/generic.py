"""Generic sets: samples of the training part that an aggregator is given, as a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from simulation import data as data_sets
from simulation.data import DataSpec, cache
from simulation.errors import DataSetError

from .layers import Generic

VERSION = 1


def generic_set(wanted: Generic, spec: DataSpec) -> Path:
    """An .npz with x (raw inputs) and y, drawn at random from the classes that are wanted; kept in the cache.

    Clients may hold the same samples. Raises DataSetError when there are too few.
    """
    settings = msgspec.json.encode((VERSION, wanted, spec), order="sorted")
    path = cache.folder() / f"generic-{hashlib.sha256(settings).hexdigest()[:16]}.npz"
    if path.exists():
        return path
    data = data_sets.load(spec, 0)
    classes = wanted.classes or tuple(range(len(data.labels)))
    of_them = np.flatnonzero(np.isin(data.train_y, classes))
    if len(of_them) < wanted.samples:
        raise DataSetError(f"a generic set of {wanted.samples} samples, but {len(of_them)} of its classes")
    drawn = np.sort(np.random.default_rng(wanted.samples).choice(of_them, wanted.samples, replace=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".part.npz")
    np.savez(making, x=data.train_x[drawn], y=data.train_y[drawn])
    making.replace(path)
    return path
