"""Asks mask helpers for sums of masks until they have answered, and stores their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import msgspec

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.storage.sums import StoredAnswer
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.sum_messages import SumAnswer, SumRequest
from device_runtime.broker.wire.transfer import Pull

from .groups import SumGroup, SumGroups

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""Seconds after which a request is sent again to a helper that has not answered."""
MAX_SILENCES = 6
"""Unanswered requests for blocks after which the answer itself is asked for again."""
BLOCKS_ASKED = 16
"""The most blocks of one answer on the way."""


@dataclass
class _Asked:
    """A request that is not answered yet. `size`: bytes of the answer. `pull`: the answer on its way."""

    helper: str
    request: SumRequest
    size: int
    sent_s: float = -inf
    pull: Pull | None = None


class SumRequests:
    """The requests to mask helpers in one round; `clock` gives seconds. Raises as Store."""

    def __init__(self, groups: SumGroups, store: Store, out: Outbound, clock: Callable[[], float]) -> None:
        self._groups, self._store, self._out, self._clock = groups, store, out, clock
        self._open: dict[tuple[bytes, str], _Asked] = {}  # by sum and helper
        self._round = 0

    @property
    def waiting(self) -> tuple[str, ...]:
        """The helpers that have not answered yet, by name."""
        return tuple(sorted({asked.helper for asked in self._open.values()}))

    @property
    def missing(self) -> int:
        """The number of sums that are not answered yet."""
        return len({asked.request.id for asked in self._open.values()})

    def begin(self, number: int) -> None:
        """Asks for all sums of round `number` that have enough devices and are not answered yet."""
        self._round, self._open = number, {}
        answers = self._store.sums.answers(number)
        refused = {answer.id for answer in answers.values() if answer.refusal}
        for group in self._groups.of_round(number):
            if group.too_small or group.id in refused:
                continue
            for at, helper in enumerate(group.masks.helpers):
                if (group.id, helper.name) not in answers:
                    request, size = self._complete(group, at), group.layout.content_bytes
                    self._open[group.id, helper.name] = _Asked(helper.name, request, size)
        self.tick()

    def _complete(self, group: SumGroup, at: int) -> SumRequest:
        request = group.request(at)
        if request.body:
            return request
        return msgspec.structs.replace(request, blob=self._store.sums.blobs.put(group.seeds))

    def tick(self) -> bool:
        """Sends what is due, and goes on fetching. Returns whether an answer was completed."""
        before, now = len(self._open), self._clock()
        for asked in list(self._open.values()):
            if asked.pull is not None:
                self._fetch(asked, asked.pull, now)
            elif now - asked.sent_s >= RESEND_S:
                asked.sent_s = now
                self._out.sum_request(asked.helper, asked.request)
        return len(self._open) < before

    def came(self, helper: str) -> None:
        """A helper is online: asks it at once."""
        for asked in self._open.values():
            if asked.helper == helper:
                asked.sent_s, asked.pull = -inf, None

    def restart(self) -> None:
        """Asks again for what is missing: the link was down."""
        for asked in self._open.values():
            asked.sent_s = -inf
            if asked.pull is not None:
                asked.pull.restart()

    def answered(self, helper: str, answer: SumAnswer) -> bool:
        """Takes a helper's answer. Returns whether it is complete; one that was not asked for is ignored."""
        asked = self._open.get((answer.id, helper))
        if asked is None:
            return False
        if answer.refusal:
            return self._keep(StoredAnswer(answer.id, helper, refusal=printable(answer.refusal)))
        size = answer.blob.size if answer.blob else len(answer.body)
        if size != asked.size:
            why = f"its answer has {size} bytes, expected {asked.size}"
            return self._keep(StoredAnswer(answer.id, helper, refusal=why))
        if answer.blob is None:
            return self._keep(StoredAnswer(answer.id, helper, answer.body))
        if self._store.sums.blobs.has(answer.blob):
            return self._keep(StoredAnswer(answer.id, helper, blob=answer.blob))
        if asked.pull is None or asked.pull.blob != answer.blob:
            self._pull(asked, answer.blob)
        return False

    def block(self, helper: str, sha: bytes, block: tuple[int, bytes]) -> bool:
        """Takes a block (number, bytes) of an answer. Returns whether it was expected."""
        expected = False
        for asked in self._open.values():
            if asked.helper == helper and asked.pull is not None and asked.pull.blob.sha == sha:
                try:
                    expected |= asked.pull.received(*block, self._clock())
                except BlobError as error:
                    self._drop(asked, str(error))
        return expected

    def blocks(self, helper: str, get: Get) -> None:
        """Sends blocks of a request that a helper fetches, if it is a request of this task."""
        if self._store.sums.blobs.has(get.blob):
            self._out.blocks(helper, get, self._store.sums.blobs)

    def _pull(self, asked: _Asked, blob: Blob) -> None:
        try:
            asked.pull = Pull(blob, self._store.sums.blobs.partial(blob))
        except BlobError as error:
            log.warning("%s", error)

    def _fetch(self, asked: _Asked, pull: Pull, now: float) -> None:
        try:
            if pull.done:
                pull.finish()
                self._keep(StoredAnswer(asked.request.id, asked.helper, blob=pull.blob))
                return
        except BlobError as error:
            self._drop(asked, str(error))
            return
        if pull.refused or pull.unanswered >= MAX_SILENCES:
            self._drop(asked, "the helper does not send it")
        elif wanted := pull.wanted(now, BLOCKS_ASKED):
            self._out.ask(asked.helper, Get(blob=pull.blob, blocks=wanted))

    def _drop(self, asked: _Asked, why: str) -> None:
        """Stops fetching an answer, and asks for it again after a while."""
        log.warning("answer of mask helper %s is asked for again: %s", asked.helper, why)
        asked.pull, asked.sent_s = None, self._clock()

    def _keep(self, answer: StoredAnswer) -> bool:
        """Stores an answer; where it is a refusal, the sum is not opened, and nobody else is asked for it."""
        self._store.sums.keep(answer, self._round)
        if answer.refusal:
            log.warning("mask helper %s refuses a sum: %s", answer.helper, answer.refusal)
            self._open = {key: asked for key, asked in self._open.items() if key[0] != answer.id}
        else:
            del self._open[answer.id, answer.helper]
        return True
