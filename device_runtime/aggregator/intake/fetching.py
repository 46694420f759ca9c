"""Fetches large contributions from devices block by block, a few at a time.

There is no clock and no socket: `now` is in seconds, `ask` sends a Get to a device. Blocks that have arrived
are on disk, so after a restart a fetch goes on as soon as the device sends its message again. An announced
contribution takes its space on disk before it arrives, so the number for each device is limited. A new
announcement removes the blocks of the contribution that it replaces, or of the device's oldest abandoned one
if the device has too many.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from device_runtime.aggregator.machine.events import ContributionId
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Blob, Contribution, Get
from device_runtime.broker.wire.transfer import Pull

log = logging.getLogger(__name__)

MAX_PULLS = 64
"""Contributions that are fetched at one time: many, as most links are slow."""
BLOCKS_ASKED = 40
"""The most blocks on the way for all fetches together; each fetch may always have one on the way.

Blocks that arrive faster than they are written are in memory.
"""
MOST_WAITING = 10_000
"""Contributions that may wait to be fetched; devices announce any others again."""
MOST_OF_ONE = 4
"""Contributions of one device that may wait or have arrived in part; the kind limits the size of each."""
MOST_ABANDONED = 256
"""Abandoned, partly received contributions of all devices, kept so that their fetches can resume."""
MAX_SILENCES = 6
"""Unanswered requests after which a fetch is abandoned until the device sends its message again."""
MAX_DAMAGES = 2
"""Failed checks of a complete content's hash after which the contribution is refused."""

Key = tuple[str, int, str]
"""Device, round and kind of a contribution."""


@dataclass(frozen=True)
class FetchedContribution:
    """A contribution whose fetch has ended: its content is complete, or `refusal` says why it never will be.

    `verified`: the hash of the content was checked just now.
    """

    update: ContributionId
    message: Contribution
    refusal: str = ""
    verified: bool = False


@dataclass(frozen=True)
class _Waiting:
    update: ContributionId
    message: Contribution
    blob: Blob
    pull: Pull | None = None
    damages: int = 0


class ContributionFetcher:
    """The fetches of one run. Raises nothing: what fails is dropped, and the device sends again."""

    def __init__(
        self,
        updates: Blobs,
        ask: Callable[[str, Get], None],
        refused: Callable[[BlobError], None] = lambda _: None,
    ) -> None:
        """`refused` hears why a contribution was dropped that the disk did not take."""
        self._updates = updates
        self._ask, self._refused = ask, refused
        self._waiting: dict[Key, _Waiting] = {}
        self._of: dict[str, set[Key]] = {}
        self._given_up: OrderedDict[tuple[str, Blob], None] = OrderedDict()
        self._announced: Counter[Blob] = Counter()
        self._said_full = False

    def want(self, update: ContributionId, message: Contribution, blob: Blob) -> None:
        """Fetch the blob of a contribution; it is dropped if too many wait.

        If the same blob was announced before, only `update` and `message` are replaced, as the receipt names
        the latest message. Another blob under the same key replaces the one before.
        """
        key = (update.device, update.round, update.kind)
        waiting = self._waiting.get(key)
        if waiting is None and self._is_full(update.device):
            return
        if waiting and waiting.blob == blob:
            self._waiting[key] = replace(waiting, update=update, message=message)
            return
        self._announced[blob] += 1
        self._waiting[key] = _Waiting(update, message, blob)
        self._of.setdefault(update.device, set()).add(key)
        if waiting:
            self._release(waiting.blob)
        if (update.device, blob) in self._given_up:
            self._let_go((update.device, blob))
        pairs = [pair for pair in self._given_up if pair[0] == update.device]
        for pair in pairs[: max(0, len(pairs) + len(self._of[update.device]) - MOST_OF_ONE)]:
            self._let_go(pair)

    def make_room(self) -> None:
        """Remove all incomplete contents, so that others find room; devices send these again."""
        for key in [key for key, waiting in self._waiting.items() if waiting.pull]:
            self._drop(key, "the disk is full", stays=False)
        for pair in list(self._given_up):
            self._let_go(pair)

    def _let_go(self, pair: tuple[str, Blob]) -> None:
        del self._given_up[pair]
        self._release(pair[1])

    def _release(self, blob: Blob) -> None:
        """Remove the blocks of an incomplete content, unless another contribution announced the same blob."""
        self._announced[blob] -= 1
        if self._announced[blob] > 0:
            return
        del self._announced[blob]
        try:
            self._updates.discard(blob)
        except BlobError as error:
            log.warning("%s", error)

    def _is_full(self, device: str) -> bool:
        """Whether no more contributions may wait, of this device or of all.

        When too many of all devices wait, only the first that is dropped is logged until there is room again.
        """
        if len(self._of.get(device, ())) >= MOST_OF_ONE:
            log.debug("update from %s deferred: %d updates of this device wait already", device, MOST_OF_ONE)
            return True
        full = len(self._waiting) >= MOST_WAITING
        if full and not self._said_full:
            log.warning("update from %s dropped: %d wait to be fetched already", device, len(self._waiting))
        self._said_full = full
        return full

    def received(self, device: str, sha: bytes, block: tuple[int, bytes], now: float) -> bool:
        """Take a block (number, bytes) of a device's upload, and ask for the next ones.

        Returns whether the block was expected; one that was not, or that came before, is ignored.
        """
        index, data = block
        expected = False
        for key in sorted(self._of.get(device, ())):
            waiting = self._waiting[key]
            if waiting.pull and waiting.blob.sha == sha:
                try:
                    expected |= waiting.pull.received(index, data, now)
                    if not (waiting.pull.done or waiting.pull.refused):
                        self._go_on(key, waiting.pull, now)
                except BlobError as error:
                    self._refuse(key, error)
        return expected

    def restart(self) -> None:
        """Ask again for what is missing: the link was down, and no answer to earlier requests will come."""
        for waiting in self._waiting.values():
            if waiting.pull:
                waiting.pull.restart()

    def tick(self, now: float) -> Iterator[FetchedContribution]:
        """Ask for missing blocks, and return the contributions that are complete or refused.

        Each is completed when it is asked for, since a round that closes deletes contents that nobody took.
        """
        for key in list(islice(self._waiting, MAX_PULLS)):
            if key in self._waiting and (arrival := self._advance(key, now)):
                yield arrival

    def _advance(self, key: Key, now: float) -> FetchedContribution | None:
        waiting = self._waiting[key]
        try:
            pull = waiting.pull or Pull(waiting.blob, self._updates.partial(waiting.blob))
            if not waiting.pull:
                self._waiting[key] = waiting = replace(waiting, pull=pull)
            if pull.done:
                return self._finish(key, waiting, pull)
        except BlobError as error:
            self._refuse(key, error)
            return None
        if pull.refused:
            self._drop(key, "the device no longer has it", stays=False)
        elif pull.unanswered >= MAX_SILENCES:
            self._drop(key, f"no answer to {MAX_SILENCES} requests")
        else:
            self._go_on(key, pull, now)
        return None

    def _go_on(self, key: Key, pull: Pull, now: float) -> None:
        """Ask for missing blocks. A contribution whose device is silent goes to the end of the queue."""
        silences = pull.unanswered
        numbers = pull.next_blocks(now, BLOCKS_ASKED // min(len(self._waiting), MAX_PULLS))
        if pull.unanswered > silences:
            self._waiting[key] = self._waiting.pop(key)
        if numbers:
            self._ask(key[0], Get(blob=pull.blob, blocks=numbers))

    def _finish(self, key: Key, waiting: _Waiting, pull: Pull) -> FetchedContribution | None:
        try:
            pull.finish()
        except BlobError as error:
            if pull.done:  # the content is right, but our disk failed
                self._refuse(key, error)
                return None
            damages = waiting.damages + 1
            if damages < MAX_DAMAGES:
                self._waiting[key] = replace(waiting, damages=damages)
                return None
            self._release(self._forget(key).blob)
            return FetchedContribution(waiting.update, waiting.message, str(error))
        self._release(self._forget(key).blob)
        return FetchedContribution(waiting.update, waiting.message, verified=True)

    def _refuse(self, key: Key, error: BlobError) -> None:
        """Stop a fetch that the disk does not take."""
        self._drop(key, str(error))
        self._refused(error)

    def _drop(self, key: Key, why: str, stays: bool = True) -> None:
        """Stop a fetch until its device announces it again; `stays` keeps its blocks for a while."""
        waiting = self._forget(key)
        pair = (key[0], waiting.blob)
        if not stays or waiting.pull is None or pair in self._given_up:
            self._release(waiting.blob)
        else:
            self._given_up[pair] = None
        if len(self._given_up) > MOST_ABANDONED:
            self._let_go(next(iter(self._given_up)))
        log.warning("update from %s dropped after %s: %s", key[0], waiting.blob.hex[:12], why)

    def _forget(self, key: Key) -> _Waiting:
        of = self._of[key[0]]
        of.remove(key)
        if not of:
            del self._of[key[0]]
        return self._waiting.pop(key)
