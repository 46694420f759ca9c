"""Downloads blobs: asks for their missing blocks at each tick until they are complete."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.blobs import BlobRoom, Blobs
from device_runtime.broker.wire.durable_files import free_bytes
from device_runtime.broker.wire.messages import Blob, Get, Offer
from device_runtime.broker.wire.transfer import Pull

log = logging.getLogger(__name__)

BLOBS, BUNDLES = "blobs", "bundles"
"""Folders in the device's own: of fetched blobs, and of unpacked bundles."""
WRONG_HASHES = 2
"""Times that a complete blob may have a wrong hash before it is given up."""


class Downloads:
    """Downloads by hash. `ask` sends a Get.

    `arrived` is called with each blob that is complete and verified, and the seconds that it took.
    """

    def __init__(
        self, blobs: Blobs, ask: Callable[[Get], None], arrived: Callable[[Blob, float], None]
    ) -> None:
        self._blobs = blobs
        self._ask = ask
        self._arrived = arrived
        self._pulls: dict[bytes, Pull] = {}
        self._began: dict[bytes, float] = {}
        self._wrong: Counter[bytes] = Counter()

    def advance(self, blobs: Iterable[Blob], now: float) -> bool:
        """Fetch these blobs and no others.

        Returns False when the sender does not have one of them, or its content never has the right hash: a
        later offer may ask again. Raises BlobError for a wrong hash, after which it is fetched again, once.
        Raises NoRoom.
        """
        blobs = tuple(blobs)
        self._pulls = {blob.sha: self._pulls[blob.sha] for blob in blobs if blob.sha in self._pulls}
        for blob in blobs:
            if blob.sha not in self._pulls:
                self._pulls[blob.sha] = Pull(blob, self._blobs.partial(blob))
        self._began = {sha: self._began.get(sha, now) for sha in self._pulls}
        for sha, pull in list(self._pulls.items()):
            if pull.refused or self._wrong[sha] >= WRONG_HASHES:
                self._give_up(pull)
                return False
            if pull.done:
                self._finish(pull)
                self._arrived(pull.blob, now - self._began[sha])
            elif blocks := pull.next_blocks(now):
                self._ask(Get(blob=pull.blob, blocks=blocks))
        return True

    def expect(self, blob: Blob, now: float) -> None:
        """The sender has begun with this blob unasked; it is not taken if there is no room."""
        if blob.sha not in self._pulls and not self._blobs.has(blob):
            try:
                self._pulls[blob.sha] = Pull(blob, self._blobs.partial(blob))
            except BlobError as error:
                log.debug("%s", error)
                return
            self._pulls[blob.sha].expect(now)
            self._began[blob.sha] = now

    def received(self, sha: bytes, index: int, data: bytes, now: float) -> None:
        """Take a block; one that is not waited for is dropped."""
        if pull := self._pulls.get(sha):
            pull.received(index, data, now)

    def restart(self) -> None:
        """The link was down: blocks that were asked for do not come."""
        for pull in self._pulls.values():
            pull.restart()

    def _finish(self, pull: Pull) -> None:
        try:
            pull.finish()
        except BlobError:
            self._wrong[pull.blob.sha] += not pull.done  # if the disk failed, it is still done
            raise
        del self._wrong[pull.blob.sha]

    def _give_up(self, pull: Pull) -> None:
        del self._pulls[pull.blob.sha]
        del self._wrong[pull.blob.sha]
        why = "the aggregator does not have it" if pull.refused else "what came as it had another hash twice"
        log.warning("blob %s: %s", pull.blob.hex[:12], why)


def half_of_room(folder: Path) -> int | None:
    """Half of the bytes that are free on the disk of a device's folder, or taken by its models.

    None where the file system does not say what is free.
    """
    free = free_bytes(folder)
    if free is None:
        return None
    paths = [path for name in (BLOBS, BUNDLES) for path in (folder / name).rglob("*") if path.is_file()]
    return (sum(path.stat().st_size for path in paths) + free) // 2


def store(folder: Path, disk_bytes: int | None) -> Blobs:
    """The blob store of the device in `folder`; with unpacked bundles it takes at most `disk_bytes`."""
    return Blobs(folder / BLOBS, room=BlobRoom(most=disk_bytes, beside=(folder / BUNDLES,)))


def prune(blobs: Blobs, offer: Offer, waiting: Iterable[Blob | None]) -> None:
    """Drop all blobs except those of this offer and those that wait to be sent."""
    bases = (offer.base, *(member.base for member in offer.family))
    parts = (part for base in bases for part in (*base.checkpoint, *base.log))
    references = (offer.bundle, *(member.bundle for member in offer.family), *parts, offer.aside, *waiting)
    try:
        blobs.prune([blob for blob in references if blob is not None])
    except BlobError as error:
        log.warning("%s", error)
