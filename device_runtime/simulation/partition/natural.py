"""Natural clients: by who wrote, spoke or sent."""

from __future__ import annotations

import logging

import numpy as np

from device_runtime.simulation.errors import DataSetError

from .dealing import Ints, Parts, grouped

log = logging.getLogger(__name__)

NOBODY = -1
"""Group of samples that are of nobody, such as clips of silence."""


def natural(groups: Ints, devices: int, rng: np.random.Generator, each: int = 0, least: int = 1) -> Parts:
    """Whole groups for each device, in random order; samples of nobody are dealt to all devices.

    groups: of each sample, (n,). `each`: groups of a device; the others stay unused. 0 gives out all groups,
    so that devices have equally many (within one). Groups of fewer than `least` samples are left out.
    Raises DataSetError when there are too few groups.
    """
    names, members = np.unique(groups[groups != NOBODY], return_counts=True)
    enough = rng.permutation(names[members >= least])
    needed = devices * max(each, 1)
    if len(enough) < needed:
        raise DataSetError(
            f"{devices} devices need {needed} groups, the data has {len(enough)} of {least} samples or more: "
            "fewer devices, or another partition"
        )
    given = enough[:needed] if each else enough
    _say(len(names), len(enough), len(given), devices)
    owner_of = dict(zip(given.tolist(), (np.arange(len(given)) % devices).tolist(), strict=True))
    known, inverse = np.unique(groups, return_inverse=True)
    owners = np.array([owner_of.get(name, NOBODY) for name in known.tolist()], np.int64)[inverse]
    free = rng.permutation(np.flatnonzero(groups == NOBODY))
    owners[free] = np.arange(len(free)) % devices
    kept = np.flatnonzero(owners != NOBODY)
    return grouped(kept, owners[kept], devices)


def _say(every: int, enough: int, given: int, devices: int) -> None:
    if given > devices:
        log.info("%d groups for %d devices: %.3g each", given, devices, given / devices)
    if given < every:
        log.info("%d of %d groups stay unused, %d of them too small", every - given, every, every - enough)
