"""The file of one-time links, `links.json` in a folder of `broker init`: which there are, how each stands."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from device_runtime.broker.servers.broker_folder import LINKS, Opened, SiteError

KEPT_S = 7 * 86400
"""Seconds for which a link that is over stays in the list."""

State = Literal["open", "used", "expired", "revoked"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since 1970, 0 for never. `secret` and `claim` are hashes (SHA-256, hex). `device`
    is empty until the link is used where who uses it may choose the name. `after`: the last revocation of a
    device that there was when it was made (register.Entry).
    """

    id: str
    device: str
    secret: str
    made: int
    ends: int
    after: int = -1
    claim: str = ""
    used: int = 0
    revoked: int = 0

    def state(self, now: float) -> State:
        if self.revoked:
            return "revoked"
        if self.used:
            return "used"
        return "open" if now < self.ends else "expired"

    def recent(self, now: float) -> bool:
        """Whether it is not long over."""
        return max(self.ends, self.used) + KEPT_S > now


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """The file. `page`: where the page was last offered, and `broker` the WebSockets that go with it, if it
    does not reach the broker through the page's own server. Links: the newest first.
    """

    page: str = ""
    broker: str = ""
    links: tuple[Link, ...] = ()

    def recent(self, now: float) -> list[Link]:
        """Links that are not long over. Others are kept for their devices, which may ask again."""
        return [link for link in self.links if link.recent(now)]

    def with_link(self, link: Link) -> Book:
        """With this one in place of its own earlier state."""
        links = tuple(link if one.id == link.id else one for one in self.links)
        return msgspec.structs.replace(self, links=links)


def read(opened: Opened) -> Book:
    """Raises SiteError."""
    if not (opened.folder / LINKS).exists():
        return Book()
    try:
        return msgspec.json.decode(opened.read(LINKS), type=Book)
    except msgspec.DecodeError as error:
        raise SiteError(f"{opened.folder / LINKS} cannot be read: {error}") from None


def keep(opened: Opened, book: Book) -> None:
    """Durably. Raises SiteError."""
    opened.write(LINKS, msgspec.json.format(msgspec.json.encode(book)).decode() + "\n")


@contextmanager
def alone(opened: Opened) -> Iterator[None]:
    """Two that use a link at once are one after the other, in one process or several."""
    folder = os.open(opened.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
