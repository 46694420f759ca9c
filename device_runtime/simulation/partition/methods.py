"""The methods that divide samples among devices, and how they draw the sizes of the parts.

First the sizes, then the methods by class mixture (IID, Dirichlet), by class (shards, exactly n classes) and
by natural client (writer, speaker, sender), then the functions that deal out single samples.
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Parts = list[Ints]
"""The sorted indices of each device's samples."""

LAST_RESORT = 1e-9
"""The least probability of a class in a mixture, so that an exhausted mixture falls back to other classes."""
NOBODY = -1
"""The group of samples that belong to no natural client, such as clips of silence."""


@dataclass(frozen=True)
class Sizes:
    """The wanted sizes of the devices' parts: equal or skewed.

    each: samples of a device (the mean, if skewed); None divides all samples.
    sigma: sizes are log-normal with this standard deviation of their logarithm; 0: no skew.
    alpha: sizes are a draw of Dirichlet(alpha) over the devices (Li et al. 2022, "NIID-Bench",
    arXiv:2102.02079, section IV-D); 0: no skew.
    least: the least samples of any device.
    reuse: several devices may have the same sample.
    """

    each: int | None = None
    sigma: float = 0.0
    alpha: float = 0.0
    least: int = 1
    reuse: bool = False

    def draw(self, samples: int, devices: int, rng: np.random.Generator) -> Ints:
        """Draws the size of each device's part, (devices,). Equal sizes leave the remainder unused.

        Raises DataSetError when there are too few samples.
        """
        total = samples if self.each is None else self.each * devices
        if total > samples and not self.reuse:
            raise DataSetError(
                f"{devices} devices of {self.each} samples need {total}, the data has {samples}: "
                "fewer devices or samples_per_client, or reuse = true"
            )
        if total < devices * self.least:
            raise DataSetError(
                f"{total} samples do not give each of {devices} devices {self.least} or more: fewer devices"
            )
        if self.sigma > 0:
            weights = np.exp(self.sigma * rng.standard_normal(devices))
        elif self.alpha > 0:
            weights = rng.dirichlet(np.full(devices, self.alpha))
        elif total // devices > samples:
            raise DataSetError(
                f"samples_per_client is {self.each}, the data has {samples}: a device cannot have a "
                "sample twice"
            )
        else:
            return np.full(devices, total // devices, np.int64)
        # No device can hold more than all samples; only with reuse could it be given more.
        return np.minimum(apportioned(weights, total, self.least), samples)


EQUAL = Sizes()


def apportioned(weights: NDArray[np.float64], total: int, least: int = 0) -> Ints:
    """Divides `total` into whole numbers: `least` each, the rest by weight (largest remainders)."""
    exact = weights / weights.sum() * (total - least * len(weights))
    whole: Ints = np.floor(exact).astype(np.int64)
    missing = total - least * len(weights) - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    whole += least
    return whole


def iid(samples: int, devices: int, rng: np.random.Generator, rule: Sizes = EQUAL) -> Parts:
    """Divides `samples` samples at random. Raises DataSetError when they are too few."""
    sizes = rule.draw(samples, devices, rng)
    return deal(np.zeros(samples, np.int64), sizes[:, None], rng, rule.reuse)


def dirichlet(
    y: NDArray[np.integer],
    devices: int,
    alpha: float,
    rng: np.random.Generator,
    rule: Sizes = EQUAL,
) -> Parts:
    """Gives each device a class mixture drawn from Dirichlet(alpha), and equally many samples (or `rule`).

    As in Hsu et al. 2019 (arXiv:1909.06335), section 3.1: each device draws its own class mixture and then
    its samples without replacement; a class that has run out is removed from the mixture. The remainder of
    len(y) / devices stays unused. Raises DataSetError when there are too few samples.
    """
    sizes = rule.draw(len(y), devices, rng)
    codes = _codes(y)
    pools = np.bincount(codes)
    mixtures = rng.dirichlet(np.full(len(pools), alpha), devices) + LAST_RESORT
    counts = _drawn(mixtures / mixtures.sum(1, keepdims=True), sizes, pools, rng, rule.reuse)
    return deal(codes, counts, rng, rule.reuse)


def dirichlet_by_class(
    y: NDArray[np.integer],
    devices: int,
    alpha: float,
    rng: np.random.Generator,
    least: int = 1,
    capped: bool = False,
) -> Parts:
    """Divides each class among the devices by a draw of Dirichlet(alpha), so that sizes differ as well.

    Li et al. 2022 ("NIID-Bench", arXiv:2102.02079, section IV-B; Yurochkin et al. 2019). They repeat the draw
    until every device has enough, which does not end for many devices. This function gives a device with
    fewer than `least` single samples of the devices that have most. All samples are used; len(y) >= devices *
    least.

    capped: a device that has len(y) / devices samples or more gets none of the classes that follow, as in the
    code of FedML (He et al. 2020, arXiv:2007.13518), where `least` is 10.
    """
    codes = _codes(y)
    pools = np.bincount(codes)
    shares = rng.dirichlet(np.full(devices, alpha), len(pools))  # (classes, devices)
    counts = np.zeros((len(pools), devices), np.int64)
    for label, (share, pool) in enumerate(zip(shares, pools, strict=True)):
        if capped:
            share = (share + LAST_RESORT) * (counts.sum(0) < len(y) / devices)  # noqa: PLW2901
            share /= share.sum()  # noqa: PLW2901
        ends = np.rint(np.cumsum(share) * pool).astype(np.int64)
        ends[-1] = pool
        counts[label] = np.diff(ends, prepend=0)
    return deal(codes, fill_to_least(counts.T, least), rng)


def _codes(y: NDArray[np.integer]) -> Ints:
    codes: Ints = np.unique(y, return_inverse=True)[1].astype(np.int64)
    return codes


def _drawn(mixtures: Floats, sizes: Ints, pools: Ints, rng: np.random.Generator, reuse: bool) -> Ints:
    """Draws the samples of each class for each device, (devices, classes), within the pools, (classes,).

    Draws of a class that has none left are repeated among the other classes, which is the same distribution
    as drawing one by one. With `reuse` the pools are full again for each device.
    """
    counts: Ints = rng.multinomial(sizes, mixtures)
    if reuse:
        for device in np.flatnonzero((counts > pools).any(axis=1)).tolist():
            counts[device] = _within(counts[device], pools, mixtures[device], rng)
        return counts
    left = pools.copy()
    for device in range(len(counts)):
        amounts = counts[device]
        if (amounts > left).any():
            counts[device] = amounts = _within(amounts, left, mixtures[device], rng)
        left -= amounts
    return counts


def _within(amounts: Ints, left: Ints, mixture: Floats, rng: np.random.Generator) -> Ints:
    size = amounts.sum()
    while (amounts > left).any():
        amounts = np.minimum(amounts, left)
        open_ones = mixture * (amounts < left)
        amounts = amounts + rng.multinomial(size - amounts.sum(), open_ones / open_ones.sum())
    return amounts


def shards(y: NDArray[np.integer], devices: int, each: int, rng: np.random.Generator) -> Parts:
    """Gives every device `each` shards of the samples sorted by class (McMahan et al. 2017, section 3).

    All shards are equally large; the remainder, drawn at random, stays unused. A shard across the border of
    two classes has both. Raises DataSetError when a shard would be empty.
    """
    size = len(y) // (devices * each)
    if not size:
        raise DataSetError(f"{devices} devices of {each} shards need as many samples, the data has {len(y)}")
    used = rng.permutation(len(y))[: devices * each * size]
    order = used[np.argsort(y[used], kind="stable")].astype(np.int64)
    places = rng.permutation(devices * each).reshape(devices, each)
    return list(np.sort(order.reshape(devices * each, size)[places].reshape(devices, -1), axis=1))


def classes(
    y: NDArray[np.integer], devices: int, each: int, rng: np.random.Generator, most: int | None = None
) -> Parts:
    """Gives every device exactly `each` classes, and every class to equally many devices (within one).

    As in Shi's thesis, table 6.3, and "#C = k" of Li et al. 2022 (arXiv:2102.02079, section IV-B): devices
    share a class equally; the remainder stays unused. With `most`, a device keeps at most that many samples,
    in equal parts of its classes. Raises DataSetError when a device would have no sample of one of its
    classes.
    """
    codes = _codes(y)
    pools = np.bincount(codes)
    if not 1 <= each <= len(pools):
        raise DataSetError(f"classes_per_client is {each}, the training data has {len(pools)} classes")
    holds = _holdings(devices, len(pools), each, rng)
    share = pools // np.maximum(holds.sum(0), 1)
    if (share[holds.any(0)] == 0).any():
        label = int(np.flatnonzero((share == 0) & holds.any(0))[0])
        raise DataSetError(
            f"class {np.unique(y)[label]} has {pools[label]} samples for {holds[:, label].sum()} devices: "
            "fewer devices or classes_per_client"
        )
    if most is not None:
        share = np.minimum(share, max(1, most // each))
    return deal(codes, holds * share, rng)


def _holdings(devices: int, labels: int, each: int, rng: np.random.Generator) -> Ints:
    """The classes of each device, 0 or 1, (devices, labels): always those that were given out least."""
    holds = np.zeros((devices, labels), np.int64)
    uses = np.zeros(labels)
    ties = rng.random((devices, labels))
    for device in range(devices):
        chosen = np.argpartition(uses + ties[device], each - 1)[:each]
        uses[chosen] += 1
        holds[device, chosen] = 1
    return holds


def natural(groups: Ints, devices: int, rng: np.random.Generator, each: int = 0, least: int = 1) -> Parts:
    """Gives each device whole groups in random order; samples of NOBODY are dealt to all devices.

    A group is a natural client: a writer, speaker or sender. groups: that of each sample, (n,). `each`: the
    groups of a device, the others stay unused; 0 gives out all groups, equally many to each device (within
    one). Groups of fewer than `least` samples are not used. Raises DataSetError when there are too few
    groups.
    """
    names, members = np.unique(groups[groups != NOBODY], return_counts=True)
    enough = rng.permutation(names[members >= least])
    needed = devices * max(each, 1)
    if len(enough) < needed:
        raise DataSetError(
            f"{devices} devices need {needed} groups, the data has {len(enough)} of {least} samples or more: "
            "fewer devices, or another partition"
        )
    in_use = enough[:needed] if each else enough
    _log_use(len(names), len(enough), len(in_use), devices)
    owner_of = dict(zip(in_use.tolist(), (np.arange(len(in_use)) % devices).tolist(), strict=True))
    distinct, inverse = np.unique(groups, return_inverse=True)
    owners = np.array([owner_of.get(name, NOBODY) for name in distinct.tolist()], np.int64)[inverse]
    free = rng.permutation(np.flatnonzero(groups == NOBODY))
    owners[free] = np.arange(len(free)) % devices
    samples = np.flatnonzero(owners != NOBODY)
    return grouped(samples, owners[samples], devices)


def _log_use(every: int, enough: int, in_use: int, devices: int) -> None:
    if in_use > devices:
        log.info("%d groups for %d devices: %.3g each", in_use, devices, in_use / devices)
    if in_use < every:
        log.info("%d of %d groups stay unused, %d of them too small", every - in_use, every, every - enough)


def deal(codes: Ints, counts: Ints, rng: np.random.Generator, reuse: bool = False) -> Parts:
    """Gives device k counts[k, c] random samples of class c.

    codes: class of each sample, (n,), from 0; counts: (devices, classes). Without `reuse` the counts of a
    class must not exceed its samples. With it, a class that does not suffice for the next device is shuffled
    and dealt again from the start, so that no device has a sample twice; no single count may exceed its
    class.
    """
    shuffled = rng.permutation(len(codes))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")].astype(np.int64)
    pools = np.split(by_class, np.cumsum(np.bincount(codes, minlength=counts.shape[1]))[:-1])
    indices, owners = [], []
    for pool, amounts in zip(pools, counts.T, strict=True):
        begins = np.cumsum(amounts) - amounts
        if reuse and amounts.sum() > len(pool):
            begins, rounds = _again(amounts, len(pool))
            pool = rng.permuted(np.tile(pool, (rounds, 1)), axis=1).ravel()  # noqa: PLW2901
        within = np.arange(amounts.sum()) - np.repeat(np.cumsum(amounts) - amounts, amounts)
        indices.append(pool[np.repeat(begins, amounts) + within])
        owners.append(np.repeat(np.arange(len(amounts)), amounts))
    return grouped(np.concatenate(indices), np.concatenate(owners), len(counts))


def grouped(indices: Ints, owners: Ints, devices: int) -> Parts:
    """Each device's indices, sorted; indices[i] belongs to device owners[i]."""
    order = np.lexsort((indices, owners))
    ends = np.cumsum(np.bincount(owners, minlength=devices)).tolist()
    every = indices[order]
    return [every[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _again(amounts: Ints, size: int) -> tuple[Ints, int]:
    """The start of each device's samples in copies of the pool, end to end; and the number of copies.

    No device's samples span two copies.
    """
    ends = np.cumsum(amounts)
    begins = ends - amounts
    first, rounds = 0, 0
    while first < len(amounts):
        last = int(np.searchsorted(ends, begins[first] + size, side="right"))
        begins[first:last] += rounds * size - begins[first]
        first, rounds = last, rounds + 1
    return begins, rounds


def fill_to_least(counts: Ints, least: int) -> Ints:
    """counts (devices, classes) with at least `least` samples each, moved from the devices that have most."""
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


def cap(parts: Parts, most: int | None, rng: np.random.Generator) -> Parts:
    """Keeps at most `most` of each device's samples, drawn at random."""
    if most is None:
        return parts
    return [p if len(p) <= most else np.sort(rng.choice(p, most, replace=False)) for p in parts]
