"""A data set divided among devices as its spec says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulation import partition
from simulation.errors import DataSetError
from simulation.partition.dealing import capped

from .dataset import DataSet
from .spec import DataSpec

DIVISION = 13  # purpose of draws from a run's seed


def divide(data: DataSet, spec: DataSpec, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Indices into the training samples for each device, sorted; none is empty, the same for a seed.

    Raises DataSetError when the samples, classes or groups do not suffice.
    """
    y, samples = data.train_y, len(data.train_y)
    if devices < 1:
        raise DataSetError(f"{devices} devices, expected 1 or more")
    if samples < devices * spec.min_samples and not spec.reuse:
        least = "one sample" if spec.min_samples == 1 else f"{spec.min_samples} samples"
        more = ", or reuse = true with samples_per_client" if spec.partition in ("iid", "dirichlet") else ""
        raise DataSetError(
            f"{devices} devices, but {samples} training samples: each needs {least} at least; "
            f"fewer devices{more}"
        )
    rng = np.random.default_rng([seed, DIVISION])
    if spec.partition == "iid":
        return partition.iid(samples, devices, rng, _sizes(spec))
    if spec.partition == "dirichlet":
        return partition.dirichlet(y, devices, spec.alpha, rng, _sizes(spec))
    if spec.partition == "classes":
        return partition.classes(y, devices, spec.classes_per_client, rng, spec.samples_per_client)
    return capped(_whole(data, spec, devices, rng), spec.samples_per_client, rng)


def _whole(data: DataSet, spec: DataSpec, devices: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """By the partitions whose sizes follow from the data."""
    if spec.partition == "dirichlet-by-class":
        return partition.dirichlet_by_class(data.train_y, devices, spec.alpha, rng, spec.min_samples)
    if spec.partition == "shards":
        return partition.shards(data.train_y, devices, spec.classes_per_client, rng)
    if data.groups is None:
        raise DataSetError(
            f"source {spec.source} does not say whose its samples are: partition natural needs groups"
        )
    return partition.natural(data.groups, devices, rng, spec.groups_per_client, spec.min_samples)


def _sizes(spec: DataSpec) -> partition.Sizes:
    return partition.Sizes(
        spec.samples_per_client, spec.quantity_sigma, spec.quantity_alpha, spec.min_samples, spec.reuse
    )
