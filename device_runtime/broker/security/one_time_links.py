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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Literal

import msgspec

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.servers.broker_folder import LINKS, BrokerFolder, SiteError
from device_runtime.broker.wire.topics import check_device

from . import register
from .enrolment import Enrolment
from .register import RegisteredDevice, RegisterError

SECRET_BYTES = 24
"""Random ones: nobody guesses 192 bits."""
CLAIM_LETTERS = (22, 86)
"""Of a claim: 16 to 64 bytes in base64."""
MOST = 500
"""Links that may be open at a time."""


class LinkError(BrokerError):
    """A link that cannot be made, used or revoked. `over`: there was one, which is good no more."""

    def __init__(self, text: str, over: bool = False) -> None:
        super().__init__(text)
        self.over = over


class NameTaken(LinkError):
    """Another name is to be given; the link is as it was."""


def offered_at(opened: BrokerFolder, page: str, broker: str) -> None:
    """Remember the address of the page and of its broker, as in Book, for links. Raises SiteError."""
    with alone(opened):
        keep(opened, msgspec.structs.replace(read(opened), page=page, broker=broker))


def make(opened: BrokerFolder, now: float, lasts_s: float, device: str = "") -> tuple[OneTimeLink, str]:
    """A link for a device of this name, or of one that it chooses, and its secret: it can be told only now.

    Raises LinkError, TopicError, SiteError.
    """
    with alone(opened):
        book = read(opened)
        if sum(link.state(now) == "open" for link in book.links) >= MOST:
            raise LinkError(f"{MOST} links are open: revoke some, or wait until they expire")
        if device:
            _check_free(opened, book, device, now)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        link = OneTimeLink(
            id=secrets.token_hex(4),
            device=device,
            secret=_hash(secret),
            made=int(now),
            ends=int(now + lasts_s),
            after=register.revocations(opened),
        )
        keep(opened, msgspec.structs.replace(book, links=(link, *_kept(opened, book, now))))
    return link, secret


def address(page: str, secret: str) -> str:
    """A link, whole: what is behind the # never leaves a browser by itself."""
    return f"{page}#link={secret}"


class LinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What who opens a link says: its secret, a claim of their own, and the name that they would have."""

    secret: str
    claim: str
    name: str = ""

    def __repr__(self) -> str:
        return f"Opening({self.name!r})"


def use(opened: BrokerFolder, opening: LinkRequest, now: float) -> Enrolment:
    """The credential of who says this claim first, or again. Mosquitto is to be told: see `register.tell`.

    On the disk first is whose the link is, then the device: whatever ends this half-way, the same claim may
    try again, and no other; it gets the same answer as long as its device is enrolled. Raises LinkError,
    SiteError.
    """
    size = len(opening.claim)
    if not CLAIM_LETTERS[0] <= size <= CLAIM_LETTERS[1] or not opening.claim.isascii():
        raise LinkError(f"a claim has {CLAIM_LETTERS[0]} to {CLAIM_LETTERS[1]} letters, this {size}")
    with alone(opened):
        book = read(opened)
        link = _claimed(_found(book, opening.secret), _hash(opening.claim), now)
        if not link.device:
            name = opening.name or f"browser-{secrets.token_hex(4)}"
            _check_free(opened, book, name, now)
            link = msgspec.structs.replace(link, device=name)
        keep(opened, book.with_link(link))
        site = opened.site
        url = book.broker or (site.web_url if site.websockets else site.url)
        who = register.Agreed(link.device, _password(opening), _secret(opening), url, link.after)
        try:
            return register.settle(opened, who, datetime.fromtimestamp(link.used, timezone.utc))
        except RegisterError as error:
            raise LinkError(str(error), over=True) from None


def revoke(opened: BrokerFolder, name: str, now: float) -> OneTimeLink:
    """Make link `name` void; of one that was used, the device is let in no more. It may be done again.

    Raises LinkError, SiteError.
    """
    with alone(opened):
        book = read(opened)
        link = next((one for one in book.links if one.id == name), None)
        if link is None:
            raise LinkError(f"no link is called {name!r}")
        void = link if link.revoked else msgspec.structs.replace(link, revoked=int(now))
        keep(opened, book.with_link(void))
        if _has_device(link, _enrolled(opened)):
            register.revoke(opened, link.device, datetime.fromtimestamp(now, timezone.utc))
    return void


def _found(book: Book, secret: str) -> OneTimeLink:
    wanted = _hash(secret)
    found = [link for link in book.links if hmac.compare_digest(link.secret, wanted)]
    if not found:
        raise LinkError("there is no such link: ask for a new one")
    return found[0]


def _claimed(link: OneTimeLink, claim: str, now: float) -> OneTimeLink:
    """Whose it is may ask again whenever: an answer that was lost may be missed late."""
    if link.revoked:
        raise LinkError("this link was revoked: ask for a new one", over=True)
    if link.claim and hmac.compare_digest(link.claim, claim):
        return link
    if link.claim:
        raise LinkError("this link was used by another browser already: ask for a new one", over=True)
    if now >= link.ends:
        raise LinkError("this link has expired: ask for a new one", over=True)
    return msgspec.structs.replace(link, claim=claim, used=int(now))


def _kept(opened: BrokerFolder, book: Book, now: float) -> list[OneTimeLink]:
    """Those that are not long over, and those whose device is enrolled still."""
    enrolled = _enrolled(opened)
    return [link for link in book.links if link.recent(now) or _has_device(link, enrolled)]


def _has_device(link: OneTimeLink, enrolled: Mapping[str, RegisteredDevice]) -> bool:
    """Whether it was used, and its device, not another of that name after it, is among these."""
    entry = enrolled.get(link.device)
    return bool(link.used) and entry is not None and entry.revocation <= link.after


def _enrolled(opened: BrokerFolder) -> Mapping[str, RegisteredDevice]:
    return {entry.name: entry for entry in register.entries(opened) if not entry.revoked}


def _check_free(opened: BrokerFolder, book: Book, name: str, now: float) -> None:
    """Raises LinkError for a name that somebody has or is to have, TopicError for one that is none."""
    check_device(name)
    waiting = {link.device for link in book.links if link.state(now) == "open"}
    if name in waiting or name in _enrolled(opened) or name == opened.site.aggregator:
        raise NameTaken(f"{name!r} is enrolled, or has a link that is open: give another name")


def _password(opening: LinkRequest) -> str:
    key = hmac.digest(opening.secret.encode(), b"device-runtime/link/1" + opening.claim.encode(), "sha256")
    return base64.urlsafe_b64encode(key[: register.PASSWORD_BYTES]).decode()


def _secret(opening: LinkRequest) -> bytes:
    """The device's own key: made of both secrets too, and not to be had from the password."""
    return hmac.digest(
        opening.secret.encode(), b"device-runtime/link-key/1" + opening.claim.encode(), "sha256"
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


# FROM one_time_link_file: The file of one-time links, `links.json` in a folder of `broker init`: which
# there are, how each stands.

KEPT_S = 7 * 86400
"""Seconds for which a link that is over stays in the list."""

State = Literal["open", "used", "expired", "revoked"]


class OneTimeLink(msgspec.Struct, frozen=True, kw_only=True):
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
    links: tuple[OneTimeLink, ...] = ()

    def recent(self, now: float) -> list[OneTimeLink]:
        """Links that are not long over. Others are kept for their devices, which may ask again."""
        return [link for link in self.links if link.recent(now)]

    def with_link(self, link: OneTimeLink) -> Book:
        """With this one in place of its own earlier state."""
        links = tuple(link if one.id == link.id else one for one in self.links)
        return msgspec.structs.replace(self, links=links)


def read(opened: BrokerFolder) -> Book:
    """Raises SiteError."""
    if not (opened.folder / LINKS).exists():
        return Book()
    try:
        return msgspec.json.decode(opened.read(LINKS), type=Book)
    except msgspec.DecodeError as error:
        raise SiteError(f"{opened.folder / LINKS} cannot be read: {error}") from None


def keep(opened: BrokerFolder, book: Book) -> None:
    """Durably. Raises SiteError."""
    opened.write(LINKS, msgspec.json.format(msgspec.json.encode(book)).decode() + "\n")


@contextmanager
def alone(opened: BrokerFolder) -> Iterator[None]:
    """Two that use a link at once are one after the other, in one process or several."""
    folder = os.open(opened.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
