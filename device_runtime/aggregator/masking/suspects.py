"""Finds the device that sends wrong numbers under a right mask, by what several spoilt sums have in common.

A sum that cannot be one of its devices' updates tells that one of them lied, not which, and none is opened
alone. So suspects are spread over as many sums as the round allows, differently in each round: the liar's sum
is spoilt each time, and other devices are in it by chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from device_runtime.aggregator.storage.contributions import MaskedContribution
from device_runtime.aggregator.storage.sums import MaskFault

LEAST_SUMS, AHEAD = 3, 2
"""A device is named that was in at least so many spoilt sums, and in so many more than others there."""


def spread(
    updates: Sequence[MaskedContribution], parts: int, suspicions: Mapping[str, int]
) -> tuple[tuple[MaskedContribution, ...], ...]:
    """The updates in so many parts of about equal size, with suspects spread over them.

    Devices with as many suspicions are spread as a hash of round and device says, and so in each round anew.
    """

    def place(update: MaskedContribution) -> tuple[int, bytes]:
        drawn = hashlib.sha256(f"{update.round} {update.device}".encode()).digest()
        return -suspicions.get(update.device, 0), drawn

    ordered = sorted(updates, key=place)
    return tuple(
        tuple(sorted(ordered[part::parts], key=lambda update: update.device)) for part in range(parts)
    )


def faults_of(
    updates: Sequence[MaskedContribution], sum_id: bytes, why: str, suspicions: Mapping[str, int]
) -> tuple[MaskFault, ...]:
    """What a spoilt sum says against its devices. `suspicions`: by device, without those of this sum."""
    ordered = sorted((suspicions.get(update.device, 0) + 1, update.device) for update in updates)
    most, device = ordered[-1]
    others = ordered[-2][0] if len(ordered) > 1 else most
    if most >= LEAST_SUMS and most - others >= AHEAD:
        common = f"{most} sums that cannot be had its updates in common"
        return (MaskFault(device, "named", common, sum_id),)
    return tuple(MaskFault(update.device, "sum", why, sum_id) for update in updates)
