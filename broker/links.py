"""One-time links: who opens one is enrolled, once, under the name that the link was made for.

A link holds a secret, of which only a hash is kept (`links.json` in the folder of `broker init`). Who opens
it first says a claim, a secret of its own; from then on the link is good for that claim alone, and gives it
the same credential however often it asks: an answer that was lost, or a server that was killed on the way,
makes no second device. The password is made of both secrets, so that it can be told again, and kept nowhere.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Literal

import msgspec

from . import register
from .enrolment import Enrolment
from .errors import BrokerError
from .site import LINKS, Opened, SiteError
from .topics import check_device

SECRET_BYTES = 24
"""Random ones: nobody guesses 192 bits."""
CLAIM_LETTERS = (22, 86)
"""Of a claim: 16 to 64 bytes in base64."""
MOST = 500
"""Links that may be open at a time."""
KEPT_S = 7 * 86400
"""Seconds for which a link that is over stays in the list."""

State = Literal["open", "used", "expired", "revoked"]


class LinkError(BrokerError):
    """A link that cannot be made, used or revoked. `over`: there was one, which is good no more."""

    def __init__(self, text: str, over: bool = False) -> None:
        super().__init__(text)
        self.over = over


class NameTaken(LinkError):
    """Another name is to be given; the link is as it was."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since 1970, 0 for never. `secret` and `claim` are hashes (SHA-256, hex). `device`
    is empty until the link is used where who uses it may choose the name.
    """

    id: str
    device: str
    secret: str
    made: int
    ends: int
    claim: str = ""
    used: int = 0
    revoked: int = 0

    def state(self, now: float) -> State:
        if self.revoked:
            return "revoked"
        if self.used:
            return "used"
        return "open" if now < self.ends else "expired"


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """The file. `page`: where the page was last offered, and `broker` the WebSockets that go with it, if it
    does not reach the broker through the page's own server.
    """

    page: str = ""
    broker: str = ""
    links: tuple[Link, ...] = ()


def read(opened: Opened) -> Book:
    """All links that are not long over, the newest first. Raises SiteError."""
    if not (opened.folder / LINKS).exists():
        return Book()
    try:
        return msgspec.json.decode(opened.read(LINKS), type=Book)
    except msgspec.DecodeError as error:
        raise SiteError(f"{opened.folder / LINKS} cannot be read: {error}") from None


def offered_at(opened: Opened, page: str, broker: str) -> None:
    """Remember the address of the page and of its broker, as in Book, for links. Raises SiteError."""
    with _alone(opened):
        _keep(opened, msgspec.structs.replace(read(opened), page=page, broker=broker))


def make(opened: Opened, now: float, lasts_s: float, device: str = "") -> tuple[Link, str]:
    """A link for a device of this name, or of one that it chooses, and its secret: it can be told only now.

    Raises LinkError, TopicError, SiteError.
    """
    with _alone(opened):
        book = read(opened)
        if sum(link.state(now) == "open" for link in book.links) >= MOST:
            raise LinkError(f"{MOST} links are open: revoke some, or wait until they expire")
        if device:
            _check_free(opened, book, device, now)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        link = Link(
            id=secrets.token_hex(4),
            device=device,
            secret=_hash(secret),
            made=int(now),
            ends=int(now + lasts_s),
        )
        kept = [one for one in book.links if max(one.ends, one.used) + KEPT_S > now]
        _keep(opened, msgspec.structs.replace(book, links=(link, *kept)))
    return link, secret


def address(page: str, secret: str) -> str:
    """A link, whole: what is behind the # never leaves a browser by itself."""
    return f"{page}#link={secret}"


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What who opens a link says: its secret, a claim of their own, and the name that they would have."""

    secret: str
    claim: str
    name: str = ""

    def __repr__(self) -> str:
        return f"Opening({self.name!r})"


def use(opened: Opened, opening: Opening, now: float) -> Enrolment:
    """The credential of who says this claim first, or again. Mosquitto is to be told: see `register.tell`.

    On the disk first is whose the link is, then the device: whatever ends this half-way, the same claim may
    try again, and no other. Raises LinkError, RegisterError, SiteError.
    """
    size = len(opening.claim)
    if not CLAIM_LETTERS[0] <= size <= CLAIM_LETTERS[1] or not opening.claim.isascii():
        raise LinkError(f"a claim has {CLAIM_LETTERS[0]} to {CLAIM_LETTERS[1]} letters, this {size}")
    with _alone(opened):
        book = read(opened)
        link = _claimed(_found(book, opening.secret), _hash(opening.claim), now)
        if not link.device:
            name = opening.name or f"browser-{secrets.token_hex(4)}"
            _check_free(opened, book, name, now)
            link = msgspec.structs.replace(link, device=name)
        _check_not_revoked(opened, link)
        _replace(opened, book, link)
        site = opened.site
        url = book.broker or (site.web_url if site.websockets else site.url)
        who = register.Agreed(link.device, _password(opening), url)
        return register.settle(opened, who, datetime.fromtimestamp(link.used, timezone.utc))


def revoke(opened: Opened, name: str, now: float) -> Link:
    """Make link `name` void; of one that was used, the device is let in no more. It may be done again.

    Raises LinkError, SiteError.
    """
    with _alone(opened):
        book = read(opened)
        link = next((one for one in book.links if one.id == name), None)
        if link is None:
            raise LinkError(f"no link is called {name!r}")
        void = link if link.revoked else msgspec.structs.replace(link, revoked=int(now))
        _replace(opened, book, void)
        enrolled = {entry.name for entry in register.entries(opened) if not entry.revoked}
        if link.used and link.device in enrolled:
            register.revoke(opened, link.device, datetime.fromtimestamp(now, timezone.utc))
    return void


def _found(book: Book, secret: str) -> Link:
    wanted = _hash(secret)
    found = [link for link in book.links if hmac.compare_digest(link.secret, wanted)]
    if not found:
        raise LinkError("there is no such link: ask for a new one")
    return found[0]


def _claimed(link: Link, claim: str, now: float) -> Link:
    if link.revoked:
        raise LinkError("this link was revoked: ask for a new one", over=True)
    if now >= link.ends:
        raise LinkError("this link has expired: ask for a new one", over=True)
    if link.claim and not hmac.compare_digest(link.claim, claim):
        raise LinkError("this link was used by another browser already: ask for a new one", over=True)
    return link if link.claim else msgspec.structs.replace(link, claim=claim, used=int(now))


def _check_free(opened: Opened, book: Book, name: str, now: float) -> None:
    """Raises LinkError for a name that somebody has or is to have, TopicError for one that is none."""
    check_device(name)
    waiting = {link.device for link in book.links if link.state(now) == "open"}
    taken = {entry.name for entry in register.entries(opened) if not entry.revoked}
    if name in waiting | taken or name == opened.site.aggregator:
        raise NameTaken(f"{name!r} is enrolled, or has a link that is open: give another name")


def _check_not_revoked(opened: Opened, link: Link) -> None:
    """Raises LinkError when the device was revoked since the link was made."""
    entry = next((one for one in register.entries(opened) if one.name == link.device), None)
    if entry and entry.revoked and datetime.fromisoformat(entry.revoked).timestamp() >= link.made:
        raise LinkError("the device of this link was revoked: ask for a new one", over=True)


def _password(opening: Opening) -> str:
    key = hmac.digest(opening.secret.encode(), b"device-runtime/link/1" + opening.claim.encode(), "sha256")
    return base64.urlsafe_b64encode(key[: register.PASSWORD_BYTES]).decode()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _replace(opened: Opened, book: Book, link: Link) -> None:
    links = tuple(link if one.id == link.id else one for one in book.links)
    _keep(opened, msgspec.structs.replace(book, links=links))


def _keep(opened: Opened, book: Book) -> None:
    """Durably."""
    opened.write(LINKS, msgspec.json.format(msgspec.json.encode(book)).decode() + "\n")


@contextmanager
def _alone(opened: Opened) -> Iterator[None]:
    """Two that use a link at once are one after the other, in one process or several."""
    folder = os.open(opened.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
