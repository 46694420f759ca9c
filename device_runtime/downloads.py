"""What the device is fetching: one pull for each blob, asked for at each tick until it is here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from broker.blobs import Blobs
from broker.errors import BlobError
from broker.messages import Blob, Get, Offer
from broker.transfer import Pull

log = logging.getLogger(__name__)


class Downloads:
    """Pulls by hash. `ask` sends a Get; `arrived` is told of each blob that is whole and verified,
    and of the seconds that it took.
    """

    def __init__(
        self, blobs: Blobs, ask: Callable[[Get], None], arrived: Callable[[Blob, float], None]
    ) -> None:
        self._blobs = blobs
        self._ask = ask
        self._arrived = arrived
        self._pulls: dict[bytes, Pull] = {}
        self._began: dict[bytes, float] = {}

    def advance(self, wanted: Iterable[Blob], now: float) -> bool:
        """Fetch these and nothing else. Returns False when the sender does not have one of them.

        Raises BlobError when what came was not what was named; it is then fetched anew.
        """
        self._pulls = {
            blob.sha: self._pulls.get(blob.sha) or Pull(blob, self._blobs.partial(blob)) for blob in wanted
        }
        self._began = {sha: self._began.get(sha, now) for sha in self._pulls}
        for sha, pull in list(self._pulls.items()):
            if pull.refused:
                del self._pulls[sha]  # a later offer may ask again
                log.warning("the aggregator does not have blob %s", pull.blob.hex[:12])
                return False
            if pull.done:
                pull.finish()
                self._arrived(pull.blob, now - self._began[sha])
            elif blocks := pull.wanted(now):
                self._ask(Get(blob=pull.blob, blocks=blocks))
        return True

    def expect(self, blob: Blob, now: float) -> None:
        """The sender has begun with this blob unasked."""
        if blob.sha not in self._pulls and not self._blobs.has(blob):
            self._pulls[blob.sha] = Pull(blob, self._blobs.partial(blob))
            self._pulls[blob.sha].expect(now)
            self._began[blob.sha] = now

    def received(self, sha: bytes, index: int, data: bytes, now: float) -> None:
        """A block came; one that nobody waits for is dropped."""
        if pull := self._pulls.get(sha):
            pull.received(index, data, now)

    def restart(self) -> None:
        """The link was down: what was asked for is not coming."""
        for pull in self._pulls.values():
            pull.restart()


def prune(blobs: Blobs, offer: Offer, waiting: Iterable[Blob | None]) -> None:
    """Drop all blobs but those of this offer and those that wait to be sent."""
    bases = (offer.base, *(member.base for member in offer.family))
    parts = (part for base in bases for part in (*base.checkpoint, *base.log))
    kept = (offer.bundle, *(member.bundle for member in offer.family), *parts, offer.aside, *waiting)
    try:
        blobs.prune([blob for blob in kept if blob is not None])
    except BlobError as error:
        log.warning("%s", error)
