"""Accounts for the privacy spent on a device's samples, on its disk, and enforces the owner's limit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path

import msgspec
import numpy as np

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.models import data as local_data
from device_runtime.models.errors import DataError
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.terms.accountant import PrivacyBudget, PrivacyError, PrivacySpending
from device_runtime.strategies.terms.dp_sgd import DpSgd, PrivacyLedger, dp_settings, spent_in_round

from .rules import ANYTHING, AllowList

Sample = bytes
DIGEST_BYTES = 16
FORMAT = 1
FILE = "privacy.json"
"""In the device's folder."""


def sample_digests(path: local_data.SampleSource | Path) -> frozenset[Sample]:
    """Identifies the samples below `path`, by a truncated SHA-256 of each as stored, without its label.

    Equal samples are one. The same sample in another form (scaled, or of another dtype) is another. Call this
    after loading the samples: one that came in between is then counted, not missed (for one that was removed
    see `PrivacyGuard.of`).
    """
    digests: set[Sample] = set()
    for x in local_data.raw(path):
        for sample in np.ascontiguousarray(x):
            form = f"{sample.dtype} {sample.shape} ".encode()
            digests.add(hashlib.sha256(form + sample.tobytes()).digest()[:DIGEST_BYTES])
    return frozenset(digests)


@dataclass(frozen=True)
class SampleGroup:
    """Samples that took part in the same rounds."""

    samples: frozenset[Sample]
    ledger: PrivacyLedger


class SpentPrivacy:
    """The privacy spent on each sample that this device ever trained on privately, for those here now.

    Samples that stay draw from the same budget when others come or go, and in every task.
    """

    def __init__(self, path: Path, here: frozenset[Sample] | None = None) -> None:
        """`path`: the file, which need not exist yet. `here`: the samples here; None for all that it knows.

        Raises DataError for a file that cannot be read, as that must not count as a new budget.
        """
        self._path = path
        self._groups = _read(path) if path.exists() else ()
        self._here = _all_samples(self._groups) if here is None else here

    @property
    def rounds(self) -> int:
        """Number of rounds of the sample that took part in most."""
        return max((ledger.rounds for ledger in self._pasts()), default=0)

    def epsilon(self, delta: float) -> float:
        """Epsilon at `delta` of the sample on which most was spent. Raises PrivacyUnavailable."""
        return max((ledger.epsilon(delta) for ledger in self._pasts()), default=0.0)

    def check(self, event: PrivacySpending, limits: Iterable[PrivacyBudget]) -> None:
        """Check that no sample would exceed any of these limits.

        Raises BudgetExceeded, PrivacyUnavailable, and PrivacyError if no sample can be read to account for.
        """
        if not self._here:
            raise PrivacyError("none of the samples can be read to account for them")
        for limit in limits:
            for ledger in self._pasts():
                ledger.check(event, limit)

    def spend(self, event: PrivacySpending, limits: Iterable[PrivacyBudget]) -> None:
        """Charge the event before training begins: it counts as spent, whatever happens then.

        Durable when this returns. Raises as `check` does, and OSError; then nothing is spent.
        """
        self.check(event, limits)
        after = _charged(self._groups, self._here, event)
        _write(self._path, after)
        self._groups = after

    def _pasts(self) -> Iterator[PrivacyLedger]:
        """The ledgers of the samples that are here."""
        for group in self._groups:
            if group.samples & self._here:
                yield group.ledger
        if self._here - _all_samples(self._groups):
            yield PrivacyLedger()


@dataclass(frozen=True)
class PrivacyGuard:
    """Decides whether a device may train a kind of update, by the owner's limit and its privacy budget.

    With an owner's limit no update without differential privacy is trained, and no task may ask for less
    privacy. Kinds that are not `allowed` are not trained.
    """

    opened: Callable[[], SpentPrivacy]
    owner: PrivacyBudget | None = None
    allowed: AllowList = ANYTHING

    @classmethod
    def of(
        cls,
        folder: Path,
        data: local_data.SampleSource | Path,
        owner: PrivacyBudget | None = None,
        loaded: local_data.Stamp = frozenset(),
        allowed: AllowList = ANYTHING,
    ) -> PrivacyGuard:
        """The guard of the device with this folder and the samples below `data`; reads both when needed.

        `loaded` stamps the files that were there before the training samples were loaded. If one of them has
        changed since, it cannot be said whose privacy training would spend.
        """

        def opened() -> SpentPrivacy:
            here = sample_digests(data)
            if loaded - local_data.stamp(data):
                raise DataError(
                    f"samples in {data} were changed or removed since they were loaded: start again"
                )
            return SpentPrivacy(folder / FILE, here)

        return cls(opened, owner, allowed)

    @cached_property
    def budget(self) -> SpentPrivacy:
        """Raises DataError."""
        return self.opened()

    def forbidden_reason(self, strategy: AnyStrategy, count: int) -> str:
        """Why this form must not be trained on the `count` samples that are here; empty when it may be."""
        if why := self.allowed.bars(strategy):
            return why
        dp = dp_settings(strategy)
        if dp is None:
            return f"is not private, and the owner asks for {self.owner}" if self.owner else ""
        if self.owner and (dp.epsilon > self.owner.epsilon or dp.delta > self.owner.delta):
            return f"asks for {dp.limit}, the owner allows {self.owner}"
        try:
            if event := spent_in_round(strategy, count):
                self.budget.check(event, self._limits(dp))
        except (PrivacyError, DataError, ValueError) as error:
            return str(error)
        return ""

    def before(self, strategy: AnyStrategy, count: int) -> None:
        """Charge what training this form spends, if it is private; call it before training.

        Raises PrivacyError, and ValueError if no amount of noise is enough.
        """
        dp, event = dp_settings(strategy), spent_in_round(strategy, count)
        if dp is None or event is None:
            return
        try:
            self.budget.spend(event, self._limits(dp))
        except OSError as error:
            raise PrivacyError(f"cannot record the privacy spent: {error}") from None
        except DataError as error:
            raise PrivacyError(str(error)) from None

    def epsilon_spent(self, strategy: AnyStrategy) -> float:
        """Epsilon spent so far on the samples here, at this kind's delta; nan if the kind is not private.

        Raises DataError, PrivacyUnavailable.
        """
        dp = dp_settings(strategy)
        return nan if dp is None else self.budget.epsilon(dp.delta)

    def _limits(self, request: DpSgd) -> tuple[PrivacyBudget, ...]:
        return (request.limit,) if self.owner is None else (request.limit, self.owner)


def _all_samples(groups: tuple[SampleGroup, ...]) -> frozenset[Sample]:
    return frozenset(sample for group in groups for sample in group.samples)


def _charged(
    groups: tuple[SampleGroup, ...], here: frozenset[Sample], event: PrivacySpending
) -> tuple[SampleGroup, ...]:
    """All samples, grouped by their ledgers after those that are `here` took part in this event."""
    pasts: dict[PrivacyLedger, frozenset[Sample]] = {}
    for group in (*groups, SampleGroup(here - _all_samples(groups), PrivacyLedger())):
        inside = group.samples & here
        for part, ledger in ((inside, group.ledger.after(event)), (group.samples - inside, group.ledger)):
            if part:
                pasts[ledger] = pasts.get(ledger, frozenset()) | part
    return tuple(SampleGroup(part, ledger) for ledger, part in pasts.items())


class _Line(msgspec.Struct):
    samples: bytes
    events: tuple[PrivacySpending, ...]


class _File(msgspec.Struct):
    version: int
    groups: tuple[_Line, ...]


def _read(path: Path) -> tuple[SampleGroup, ...]:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.MsgspecError, ValueError, OSError) as error:
        raise DataError(
            f"{path}: what was spent of the samples' privacy cannot be read ({error}): "
            f"restore it; without it nothing is known of what was spent"
        ) from None
    if file.version != FORMAT:
        raise DataError(f"{path} is of version {file.version}, this software knows {FORMAT}")
    return tuple(SampleGroup(_cut(line.samples), PrivacyLedger(line.events)) for line in file.groups)


def _cut(joined: bytes) -> frozenset[Sample]:
    return frozenset(joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES))


def _write(path: Path, groups: tuple[SampleGroup, ...]) -> None:
    lines = tuple(_Line(b"".join(sorted(group.samples)), group.ledger.events) for group in groups)
    replace_file(path, msgspec.json.encode(_File(FORMAT, lines)))
