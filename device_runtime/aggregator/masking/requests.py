"""Asks mask helpers for sums of masks until they have answered, and stores their answers.

A helper tells a sum of each mask once, so a device that sent a wrong mask would spoil the sum of all others.
Before any helper is asked for a sum of a round, all are therefore asked whether they would tell it. Devices
that one of them names are left out, the others are divided anew, and checked again. Helpers of before there
were such checks, whose presence (`HelperState`) does not say so, are asked for sums at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import msgspec

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.storage.sums import MaskFault, StoredAnswer
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.sum_messages import MOST_NAMED, SumAnswer, SumCheck, SumRequest
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
class _Query:
    """A request that is not answered yet, or only the question whether it would be (`check`).

    `size`: bytes of the answer. `pull`: the answer on its way.
    """

    helper: str
    request: SumRequest
    size: int
    check: bool
    sent_s: float = -inf
    pull: Pull | None = None


class SumRequests:
    """The requests to mask helpers in one round; `clock` gives seconds. Raises as Store."""

    def __init__(self, groups: SumGroups, store: Store, out: Outbound, clock: Callable[[], float]) -> None:
        self._groups, self._store, self._out, self._clock = groups, store, out, clock
        self._open: dict[tuple[bytes, str], _Query] = {}  # by sum and helper
        self._round = 0
        self._checking = set[str]()  # helpers that answer checks, by name
        self._checked = set[tuple[bytes, str]]()  # sums that helpers would tell
        self._objections: dict[tuple[bytes, str], SumAnswer] = {}

    @property
    def waiting(self) -> tuple[str, ...]:
        """The helpers that have not answered yet, by name."""
        return tuple(sorted({query.helper for query in self._open.values()}))

    @property
    def missing(self) -> int:
        """The number of sums that are not answered yet."""
        return len({query.request.id for query in self._open.values()})

    def begin(self, number: int) -> None:
        """Asks for all sums of round `number` that have enough devices and are not answered yet.

        Where helpers check sums, it first asks them all whether they would tell these.
        """
        self._round, self._open = number, {}
        self._checked.clear()
        faults, groups = self._store.sums.faults, self._groups.of_round(number)
        plan = faults.checks(number)
        if plan is None:
            names = {helper.name for group in groups for helper in group.masks.helpers}
            if helpers := sorted(names & self._checking):
                faults.begin_checks(number, helpers)
                plan = faults.checks(number)
        if plan is None or plan[1]:
            self._ask(groups, None)
        else:
            self._check(groups, plan[0])
        self.tick()

    def _check(self, groups: Sequence[SumGroup], helpers: Collection[str]) -> None:
        """Asks these helpers for all that they have not checked yet, then for the sums themselves."""
        self._objections = {}
        self._ask(groups, helpers)
        if not self._open:
            self._store.sums.faults.end_checks(self._round)
            self._ask(groups, None)

    def _ask(self, groups: Sequence[SumGroup], checking: Collection[str] | None) -> None:
        """Opens the requests of these groups; with `checking` only asks these helpers to check them."""
        answers = self._store.sums.answers(self._round)
        refused = {answer.id for answer in answers.values() if answer.refusal}
        for group in groups:
            if group.too_small or group.id in refused:
                continue
            for at, helper in enumerate(group.masks.helpers):
                key, size = (group.id, helper.name), group.layout.content_bytes
                if key in answers:
                    continue
                if checking is not None and (helper.name not in checking or key in self._checked):
                    continue
                check = checking is not None
                self._open[key] = _Query(helper.name, self._complete(group, at), size, check)

    def _complete(self, group: SumGroup, at: int) -> SumRequest:
        request = group.request(at)
        if request.body:
            return request
        return msgspec.structs.replace(request, blob=self._store.sums.blobs.put(group.seeds))

    def tick(self) -> bool:
        """Sends what is due, and goes on fetching. Returns whether an answer was completed."""
        before, now = len(self._open), self._clock()
        for query in list(self._open.values()):
            if query.pull is not None:
                self._fetch(query, query.pull, now)
            elif now - query.sent_s >= RESEND_S:
                query.sent_s = now
                question = SumCheck(request=query.request) if query.check else query.request
                self._out.sum_request(query.helper, question)
        return len(self._open) < before

    def came(self, helper: str, checks: bool = False) -> None:
        """A helper is online: asks it at once. `checks`: it answers checks, from the next round on."""
        (self._checking.add if checks else self._checking.discard)(helper)
        for query in self._open.values():
            if query.helper == helper:
                query.sent_s, query.pull = -inf, None

    def restart(self) -> None:
        """Asks again for what is missing: the link was down."""
        for query in self._open.values():
            query.sent_s = -inf
            if query.pull is not None:
                query.pull.restart()

    def answered(self, helper: str, answer: SumAnswer) -> bool:
        """Takes a helper's answer. Returns whether it is complete; one that was not asked for is ignored."""
        query = self._open.get((answer.id, helper))
        if query is None or query.check != answer.checked:
            return False
        if query.check:
            self._heard(query, answer)
            return True
        if answer.refusal:
            return self._keep(StoredAnswer(answer.id, helper, refusal=printable(answer.refusal)))
        size = answer.blob.size if answer.blob else len(answer.body)
        if size != query.size:
            why = f"its answer has {size} bytes, expected {query.size}"
            return self._keep(StoredAnswer(answer.id, helper, refusal=why))
        if answer.blob is None:
            return self._keep(StoredAnswer(answer.id, helper, answer.body))
        if self._store.sums.blobs.has(answer.blob):
            return self._keep(StoredAnswer(answer.id, helper, blob=answer.blob))
        if query.pull is None or query.pull.blob != answer.blob:
            self._pull(query, answer.blob)
        return False

    def _heard(self, query: _Query, answer: SumAnswer) -> None:
        """Takes the answer to a check. After the last one, leaves devices out, or goes on to the sums."""
        key = query.request.id, query.helper
        del self._open[key]
        self._checked.add(key)
        if answer.invalid or answer.used:
            self._objections[key] = answer
        if self._open:
            return
        number, faults = self._round, self._store.sums.faults
        for group in self._groups.of_round(number):
            named = {
                name: objection
                for (sum_id, name), objection in self._objections.items()
                if sum_id == group.id
            }
            if named:
                self._leave_out(group, named)
        plan = faults.checks(number)
        self._check(self._groups.of_round(number), plan[0] if plan else ())
        self.tick()

    def _leave_out(self, group: SumGroup, named: Mapping[str, SumAnswer]) -> None:
        """Leaves the devices that helpers name out of a group.

        Where a helper can open no mask at all, or MOST_NAMED cannot be opened, the fault is its own: the sum
        is not opened.
        """
        devices = {update.device for update in group.updates}
        faults: dict[str, MaskFault] = {}
        for helper, answer in named.items():
            if devices <= set(answer.invalid) or len(answer.invalid) >= MOST_NAMED:
                why = (
                    f"it cannot open {len(answer.invalid)} of {len(devices)} masks, as if its key had changed"
                )
                self._store.sums.keep(StoredAnswer(group.id, helper, refusal=why), self._round)
                log.warning("mask helper %s refuses a sum of %s: %s", helper, group.kind, why)
                return
            used = f"mask helper {helper} has summed its mask in another set"
            faults |= {name: MaskFault(name, "used", used) for name in answer.used if name in devices}
            invalid = f"mask helper {helper} cannot open its mask"
            faults |= {name: MaskFault(name, "mask", invalid) for name in answer.invalid if name in devices}
        for fault in faults.values():
            log.warning("%s is left out of a sum of %s: %s", fault.device, group.kind, fault.why)
        self._store.sums.faults.leave_out(self._round, tuple(faults.values()))

    def block(self, helper: str, sha: bytes, block: tuple[int, bytes]) -> bool:
        """Takes a block (number, bytes) of an answer. Returns whether it was expected."""
        expected = False
        for query in self._open.values():
            if query.helper == helper and query.pull is not None and query.pull.blob.sha == sha:
                try:
                    expected |= query.pull.received(*block, self._clock())
                except BlobError as error:
                    self._drop(query, str(error))
        return expected

    def blocks(self, helper: str, get: Get) -> None:
        """Sends blocks of a request that a helper fetches, if it is a request of this task."""
        if self._store.sums.blobs.has(get.blob):
            self._out.blocks(helper, get, self._store.sums.blobs)

    def _pull(self, query: _Query, blob: Blob) -> None:
        try:
            query.pull = Pull(blob, self._store.sums.blobs.partial(blob))
        except BlobError as error:
            log.warning("%s", error)

    def _fetch(self, query: _Query, pull: Pull, now: float) -> None:
        try:
            if pull.done:
                pull.finish()
                self._keep(StoredAnswer(query.request.id, query.helper, blob=pull.blob))
                return
        except BlobError as error:
            self._drop(query, str(error))
            return
        if pull.refused or pull.unanswered >= MAX_SILENCES:
            self._drop(query, "the helper does not send it")
        elif blocks := pull.next_blocks(now, BLOCKS_ASKED):
            self._out.ask(query.helper, Get(blob=pull.blob, blocks=blocks))

    def _drop(self, query: _Query, why: str) -> None:
        """Stops fetching an answer, and asks for it again after a while."""
        log.warning("answer of mask helper %s is asked for again: %s", query.helper, why)
        query.pull, query.sent_s = None, self._clock()

    def _keep(self, answer: StoredAnswer) -> bool:
        """Stores an answer; where it is a refusal, the sum is not opened, and nobody else is asked for it."""
        self._store.sums.keep(answer, self._round)
        if answer.refusal:
            log.warning("mask helper %s refuses a sum: %s", answer.helper, answer.refusal)
            self._open = {key: query for key, query in self._open.items() if key[0] != answer.id}
        else:
            del self._open[answer.id, answer.helper]
        return True
