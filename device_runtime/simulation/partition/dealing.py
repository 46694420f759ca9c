"""From how many samples of each class a device gets to which ones."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Parts = list[Ints]


def dealt(codes: Ints, counts: Ints, rng: np.random.Generator, reuse: bool = False) -> Parts:
    """Samples of class c, shuffled, go to device k counts[k, c] at a time.

    codes: class of each sample, (n,), from 0; counts: (devices, classes). Without `reuse` no class may be
    asked for more than it has. With it, a class that does not suffice for the next device is shuffled and
    dealt again from the start, so that no device has a sample twice; no count may exceed its class.
    """
    shuffled = rng.permutation(len(codes))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")].astype(np.int64)
    pools = np.split(by_class, np.cumsum(np.bincount(codes, minlength=counts.shape[1]))[:-1])
    taken, owners = [], []
    for pool, wanted in zip(pools, counts.T, strict=True):
        begins = np.cumsum(wanted) - wanted
        if reuse and wanted.sum() > len(pool):
            begins, rounds = _again(wanted, len(pool))
            pool = rng.permuted(np.tile(pool, (rounds, 1)), axis=1).ravel()  # noqa: PLW2901
        within = np.arange(wanted.sum()) - np.repeat(np.cumsum(wanted) - wanted, wanted)
        taken.append(pool[np.repeat(begins, wanted) + within])
        owners.append(np.repeat(np.arange(len(wanted)), wanted))
    return grouped(np.concatenate(taken), np.concatenate(owners), len(counts))


def grouped(indices: Ints, owners: Ints, devices: int) -> Parts:
    """Each device's indices, sorted; owners[i] has indices[i]."""
    order = np.lexsort((indices, owners))
    ends = np.cumsum(np.bincount(owners, minlength=devices)).tolist()
    every = indices[order]
    return [every[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _again(wanted: Ints, size: int) -> tuple[Ints, int]:
    """Where each device's samples begin in a pool that is repeated, none across a seam; how many repeats."""
    ends = np.cumsum(wanted)
    begins = ends - wanted
    first, rounds = 0, 0
    while first < len(wanted):
        last = int(np.searchsorted(ends, begins[first] + size, side="right"))
        begins[first:last] += rounds * size - begins[first]
        first, rounds = last, rounds + 1
    return begins, rounds


def repaired(counts: Ints, least: int) -> Ints:
    """counts (devices, classes) with `least` samples for all, given one by one by those who have most."""
    counts = counts.copy()
    totals = counts.sum(1)
    rich = [(-int(total), device) for device, total in enumerate(totals) if total > least]
    heapq.heapify(rich)
    for poor in np.flatnonzero(totals < least):
        for _ in range(least - totals[poor]):
            total, giver = heapq.heappop(rich)
            label = int(counts[giver].argmax())
            counts[giver, label] -= 1
            counts[poor, label] += 1
            if -total - 1 > least:
                heapq.heappush(rich, (total + 1, giver))
    return counts


def capped(parts: Parts, most: int | None, rng: np.random.Generator) -> Parts:
    """At most this many of each device's samples, drawn at random."""
    if most is None:
        return parts
    return [p if len(p) <= most else np.sort(rng.choice(p, most, replace=False)) for p in parts]
