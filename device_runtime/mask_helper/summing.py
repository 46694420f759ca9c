"""Checks a request for a sum of masks, and adds the masks up; no disk, no network, no clock.

What is asked for must be what the devices were promised: their seeds open for that purpose only (see
`strategies.masking.seeds`). That no seed is used in two sets is the ledger's part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

import msgspec

from device_runtime.broker.wire.sum_messages import MOST_NAMED, SumRequest, SumSeed
from device_runtime.broker.wire.topics import TopicError, check_device, check_task
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.masking.layout import CHECKS
from device_runtime.strategies.masking.masks import MaskedVector, keystream
from device_runtime.strategies.masking.noise import add_noise, deviation_of
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal


class MaskHelperError(Exception):
    """Base class of the errors that `mask_helper` raises."""


class SumRefused(MaskHelperError):
    """A sum that is not told; the text goes to the aggregator.

    invalid: the devices whose masks cannot be opened. used: those whose masks are in another set. Without all
    of them the sum might be told.
    """

    def __init__(self, text: str, invalid: tuple[str, ...] = (), used: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.invalid, self.used = invalid, used


class LedgerError(MaskHelperError):
    """The ledger cannot be read or written, or is of another version."""


class MetricsError(MaskHelperError):
    """An address at which no metrics can be served."""


LONGEST_NAME = 256
"""Bytes of the longest name of a run, a kind or a form."""
SEED_BYTES = 512
"""Bytes of the longest encoded SumSeed, rounded up."""
_seeds = msgspec.msgpack.Decoder(tuple[SumSeed, ...])


@dataclass(frozen=True)
class SumLimits:
    """Limits that the helper's owner sets.

    min_group: the fewest devices of a sum, where the task promises fewer. most_devices: of a sum.
    most_numbers: values and sums of a vector together; a value takes 4 bytes of memory, a sum 8.
    """

    min_group: int = 2
    most_devices: int = 100_000
    most_numbers: int = 50_000_000

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest list of seeds."""
        return SEED_BYTES * self.most_devices


@dataclass(frozen=True)
class MaskSet:
    """A checked request, and the opened seed of each device (32 bytes), in the order of `devices`.

    content: sha256 of all that the sum depends on, in whatever order the devices came. helpers: the number of
    the round's mask helpers.
    """

    request: SumRequest
    content: bytes
    devices: tuple[str, ...]
    helpers: int
    seeds: tuple[bytes, ...] = field(repr=False)


def check_request(request: SumRequest, limits: SumLimits) -> None:
    """Checks all but the seeds, which may have to be fetched first. Raises SumRefused."""
    try:
        check_task(request.task)
    except TopicError as error:
        raise SumRefused(str(error)) from None
    for name in ("run", "kind"):
        _check_length(name, getattr(request, name))
    if (request.blob is None) == (not request.body):
        raise SumRefused("the request has both a body and a blob, or neither: expected one list of seeds")
    if request.blob is not None and request.blob.size > limits.most_bytes:
        size, most = request.blob.size, limits.most_bytes
        raise SumRefused(f"the list of seeds has {size} bytes, at most {most} are read here")
    if request.values < CHECKS:
        raise SumRefused(f"the vector has {request.values} values, expected {CHECKS} or more")
    numbers = request.values + request.sums
    if numbers > limits.most_numbers:
        sizes = f"{request.values} values and {request.sums} sums"
        raise SumRefused(f"the vector has {sizes}, at most {limits.most_numbers} numbers are summed here")
    _check_noise(request)


def _check_noise(request: SumRequest) -> None:
    """Checks that noise is added to every value but the checks."""
    if not request.noise_milli:
        if request.exponents:
            raise SumRefused(f"{len(request.exponents)} runs of exponents without noise, expected none")
        return
    counted = sum(count for count, _ in request.exponents)
    if counted != request.values - CHECKS:
        expected = f"{request.values - CHECKS}, for {request.values} values"
        raise SumRefused(f"exponents are of {counted} values, expected {expected}")
    if not request.clip_milli:
        raise SumRefused(f"noise of {request.noise_milli / 1000:g} times a clipping norm of 0, which is none")
    if request.sums:
        raise SumRefused(f"the vector has {request.sums} sums, to which no noise is added, expected 0")


def opened_set(secret: bytes, request: SumRequest, content: bytes, limits: SumLimits) -> MaskSet:
    """The set of a request that passed `check_request`, from its encoded list of seeds.

    secret: of the helper (X25519, 32 bytes). Raises SumRefused for a set that is too small or too large, or
    has a device twice, or masks that were made for another purpose, round, device or helper: it names their
    devices.
    """
    try:
        listed = _seeds.decode(content)
    except (msgspec.DecodeError, ValueError) as error:
        raise SumRefused(f"the list of seeds cannot be read: {error}") from None
    sealed = sorted(listed, key=lambda entry: entry.device)
    _check_size(request, len(sealed), limits)
    for entry, following in pairwise(sealed):
        if entry.device == following.device:
            raise SumRefused(f"{entry.device} is in the set twice: a device counts once in a sum")
    [(helpers, _)] = Counter(len(entry.mask.tags) for entry in sealed).most_common(1)
    seeds, invalid, why = [], [], ""
    for entry in sealed:
        try:
            seeds.append(_opened(secret, request, entry, helpers))
        except SumRefused as error:
            why = why or str(error)
            invalid.append(entry.device)
    if invalid:
        others = f"; nor can those of {named(invalid[1:])} be opened" if len(invalid) > 1 else ""
        raise SumRefused(why + others, invalid=tuple(invalid[:MOST_NAMED]))
    devices = tuple(entry.device for entry in sealed)
    opened = MaskSet(request, _content(request, sealed), devices, helpers, tuple(seeds))
    _check_scaled_noise(opened)
    return opened


def named(devices: Sequence[str]) -> str:
    """The names of the first three devices, and the number of the others."""
    return ", ".join(devices[:3]) + (f" and {len(devices) - 3} more" if len(devices) > 3 else "")


def _check_size(request: SumRequest, devices: int, limits: SumLimits) -> None:
    if devices < request.min_group:
        raise SumRefused(f"the set has {devices} devices, the round promises {request.min_group} or more")
    if devices < limits.min_group:
        raise SumRefused(f"the set has {devices} devices, this helper sums {limits.min_group} or more")
    if devices > limits.most_devices:
        raise SumRefused(f"the set has {devices} devices, this helper sums {limits.most_devices} at most")


def _check_scaled_noise(masks: MaskSet) -> None:
    """Checks that the noise fits the values, before a set is used up for it."""
    none_of_each = tuple((0, exponent) for _, exponent in masks.request.exponents)
    try:
        add_noise(MaskedVector.zeros(CHECKS, 0), none_of_each, deviation(masks), bytes)
    except ValueError as error:
        raise SumRefused(str(error)) from None


def _opened(secret: bytes, request: SumRequest, entry: SumSeed, helpers: int) -> bytes:
    """The seed of one device."""
    if len(entry.mask.tags) != helpers:
        counts = f"{len(entry.mask.tags)} helpers, others {helpers}"
        raise SumRefused(f"the mask of {entry.device} is for {counts}: a round has the same for all")
    _check_length("form", entry.form)
    try:
        check_device(entry.device)
        return unseal(secret, entry.mask, request.at, MaskPurpose.of_request(request, entry))
    except (MaskError, TopicError, OverflowError) as error:
        raise SumRefused(str(error)) from None


def _check_length(name: str, text: str) -> None:
    if (size := len(text.encode())) > LONGEST_NAME:
        raise SumRefused(f"the name of the {name} has {size} bytes, expected {LONGEST_NAME} at most")


def _content(request: SumRequest, sealed: Sequence[SumSeed]) -> bytes:
    terms = (
        *(request.task, request.run, request.round, request.kind, request.at, request.min_group),
        *(request.values, request.sums, request.noise_milli, request.clip_milli, request.exponents),
    )
    return hashlib.sha256(msgspec.msgpack.encode((terms, sealed))).digest()


class MaskSum:
    """Adds up the masks of a set in one vector, however many devices there are.

    noise: 32 bytes, from which the noise is drawn, always the same; empty where none is asked for.
    """

    def __init__(self, masks: MaskSet, noise: bytes = b"") -> None:
        self.set = masks
        self.vector = MaskedVector.zeros(masks.request.values, masks.request.sums)
        self._noise = noise
        self._left = iter(masks.seeds)

    def advance(self) -> bool:
        """Adds the mask of the next device, or the noise after the last one. Returns whether that was all."""
        seed = next(self._left, None)
        if seed is not None:
            self.vector.add_masks([seed])
            return False
        request = self.set.request
        if request.noise_milli:
            add_noise(self.vector, request.exponents, deviation(self.set), repeatable_bytes(self._noise))
        return True


def sum_of_masks(masks: MaskSet, noise: bytes = b"") -> MaskedVector:
    """The sum of the masks of a set, with noise if the round asks for it."""
    adding = MaskSum(masks, noise)
    while not adding.advance():
        pass
    return adding.vector


def deviation(masks: MaskSet) -> float:
    """This helper's share of the noise, as a standard deviation in units of a weight's change."""
    return deviation_of(masks.request.noise_milli, masks.request.clip_milli) / sqrt(masks.helpers)


def repeatable_bytes(seed: bytes) -> Callable[[int], bytes]:
    """A source of random bytes that gives the same for the same seed (32 bytes) and the same calls."""
    calls = 0

    def source(size: int) -> bytes:
        nonlocal calls
        calls += 1
        return keystream(seed, calls.to_bytes(12, "little"), size)

    return source
