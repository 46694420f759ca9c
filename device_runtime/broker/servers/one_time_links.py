"""One-time links, each of which enrols one browser; and `links.json`, the file that lists them.

A link holds a secret, of which only a hash is stored (`links.json` in the folder of `broker init`). The
browser that opens it sends a claim, a secret of its own. From then on the link is valid for that claim alone,
and gives it the same credential however often it asks: a lost answer, or a server that was killed meanwhile,
makes no second device. The password is derived from both secrets, so that it can be sent again and is stored
nowhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Literal

import msgspec

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.servers.broker_folder import LINKS, BrokerFolder, SetupError
from device_runtime.broker.wire.durable_files import locked_folder
from device_runtime.broker.wire.topics import check_device

from . import register
from .register import RegisteredDevice, RegisterError

SECRET_BYTES = 24
"""Random bytes of a link's secret: nobody guesses 192 bits."""
CLAIM_LETTERS = (22, 86)
"""The shortest and the longest claim, in letters: 16 to 64 bytes in base64."""
MOST_OPEN_LINKS = 500
"""The most links that may be open at a time."""
KEPT_S = 7 * 86400
"""Seconds for which a link that was used or has expired stays in the list."""

State = Literal["open", "used", "expired", "revoked"]


class LinkError(BrokerError):
    """A link that cannot be made, used or revoked. `over`: the link existed, but is no longer valid."""

    def __init__(self, text: str, over: bool = False) -> None:
        super().__init__(text)
        self.over = over


class NameTaken(LinkError):
    """The name is taken: another one must be given. The link has not changed."""


class OneTimeLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link as stored. Times are in seconds since 1970, 0 for never.

    `secret` and `claim` are hashes (SHA-256, hex). `device` is empty, until the link is used, if the browser
    may choose the name. `after`: the number of the last revocation when the link was made (see
    `register.RegisteredDevice`).
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
        """Whether it is open, or was used or has expired at most KEPT_S ago."""
        return max(self.ends, self.used) + KEPT_S > now


class LinkBook(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `links.json`; the newest link is first.

    `page`: the URL at which the page was last offered. `broker`: the URL of the broker's WebSockets for that
    page, empty if the page reaches the broker through its own server.
    """

    page: str = ""
    broker: str = ""
    links: tuple[OneTimeLink, ...] = ()

    def recent(self, now: float) -> list[OneTimeLink]:
        """The recent links. Older ones are stored for their devices only, which may ask again."""
        return [link for link in self.links if link.recent(now)]

    def with_link(self, link: OneTimeLink) -> LinkBook:
        """The book with `link` in place of its earlier state."""
        links = tuple(link if entry.id == link.id else entry for entry in self.links)
        return msgspec.structs.replace(self, links=links)


class LinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a browser sends that opens a link: its secret, a claim of its own, and the name it would like."""

    secret: str
    claim: str
    name: str = ""

    def __repr__(self) -> str:
        return f"LinkRequest({self.name!r})"


def store_addresses(opened: BrokerFolder, page: str, broker: str) -> None:
    """Store the URLs of the page and of its broker, as in LinkBook. Raises SetupError."""
    with locked_folder(opened.folder):
        write_links(opened, msgspec.structs.replace(read_links(opened), page=page, broker=broker))


def make(opened: BrokerFolder, now: float, lasts_s: float, device: str = "") -> tuple[OneTimeLink, str]:
    """Make a link for a device of this name, or of a name that it chooses. Returns it and its secret.

    The secret is not stored, so that this is the only time to show it. Raises LinkError, TopicError,
    SetupError.
    """
    with locked_folder(opened.folder):
        book = read_links(opened)
        if sum(link.state(now) == "open" for link in book.links) >= MOST_OPEN_LINKS:
            raise LinkError(f"{MOST_OPEN_LINKS} links are open: revoke some, or wait until they expire")
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
        write_links(opened, msgspec.structs.replace(book, links=(link, *_to_keep(opened, book, now))))
    return link, secret


def address(page: str, secret: str) -> str:
    """The whole link. A browser does not send the part behind the # to a server."""
    return f"{page}#link={secret}"


def use(opened: BrokerFolder, request: LinkRequest, now: float) -> Enrolment:
    """Enrol the device of the first claim to this link, or answer that claim again.

    Call `register.reload_mosquitto` afterwards. The claim is stored first, then the device: if this fails
    half-way, the same claim may try again, and no other. It gets the same answer as long as its device is
    enrolled. Raises LinkError, SetupError.
    """
    size = len(request.claim)
    if not CLAIM_LETTERS[0] <= size <= CLAIM_LETTERS[1] or not request.claim.isascii():
        raise LinkError(f"a claim has {CLAIM_LETTERS[0]} to {CLAIM_LETTERS[1]} letters, this {size}")
    with locked_folder(opened.folder):
        book = read_links(opened)
        link = _claimed(_link_of(book, request.secret), _hash(request.claim), now)
        if not link.device:
            name = request.name or f"browser-{secrets.token_hex(4)}"
            _check_free(opened, book, name, now)
            link = msgspec.structs.replace(link, device=name)
        write_links(opened, book.with_link(link))
        site = opened.site
        url = book.broker or (site.web_url if site.websockets else site.url)
        agreed = register.AgreedCredentials(
            link.device, _password(request), _secret(request), url, link.after
        )
        try:
            return register.enrol_agreed(opened, agreed, datetime.fromtimestamp(link.used, timezone.utc))
        except RegisterError as error:
            raise LinkError(str(error), over=True) from None


def revoke(opened: BrokerFolder, name: str, now: float) -> OneTimeLink:
    """Make the link with the id `name` void, and revoke the device that used it. May be repeated.

    Raises LinkError, SetupError.
    """
    with locked_folder(opened.folder):
        book = read_links(opened)
        link = next((entry for entry in book.links if entry.id == name), None)
        if link is None:
            raise LinkError(f"no link is called {name!r}")
        void = link if link.revoked else msgspec.structs.replace(link, revoked=int(now))
        write_links(opened, book.with_link(void))
        if _has_device(link, _enrolled(opened)):
            register.revoke(opened, link.device, datetime.fromtimestamp(now, timezone.utc))
    return void


def read_links(opened: BrokerFolder) -> LinkBook:
    """Read `links.json`. Raises SetupError."""
    if not (opened.folder / LINKS).exists():
        return LinkBook()
    try:
        return msgspec.json.decode(opened.read(LINKS), type=LinkBook)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{opened.folder / LINKS} cannot be read: {error}") from None


def write_links(opened: BrokerFolder, book: LinkBook) -> None:
    """Write `links.json` durably. Raises SetupError."""
    opened.write(LINKS, msgspec.json.format(msgspec.json.encode(book)).decode() + "\n")


def _link_of(book: LinkBook, secret: str) -> OneTimeLink:
    digest = _hash(secret)
    links = [link for link in book.links if hmac.compare_digest(link.secret, digest)]
    if not links:
        raise LinkError("there is no such link: ask for a new one")
    return links[0]


def _claimed(link: OneTimeLink, claim: str, now: float) -> OneTimeLink:
    """The link with this claim. The claim that has it may ask again at any time: its answer may be lost.

    Raises LinkError.
    """
    if link.revoked:
        raise LinkError("this link was revoked: ask for a new one", over=True)
    if link.claim and hmac.compare_digest(link.claim, claim):
        return link
    if link.claim:
        raise LinkError("this link was used by another browser already: ask for a new one", over=True)
    if now >= link.ends:
        raise LinkError("this link has expired: ask for a new one", over=True)
    return msgspec.structs.replace(link, claim=claim, used=int(now))


def _to_keep(opened: BrokerFolder, book: LinkBook, now: float) -> list[OneTimeLink]:
    """The links to keep: recent ones, and those whose device is still enrolled."""
    enrolled = _enrolled(opened)
    return [link for link in book.links if link.recent(now) or _has_device(link, enrolled)]


def _has_device(link: OneTimeLink, enrolled: Mapping[str, RegisteredDevice]) -> bool:
    """Whether the device that used the link, not a later one of that name, is among these."""
    entry = enrolled.get(link.device)
    return bool(link.used) and entry is not None and entry.revocation <= link.after


def _enrolled(opened: BrokerFolder) -> Mapping[str, RegisteredDevice]:
    return {entry.name: entry for entry in register.entries(opened) if not entry.revoked}


def _check_free(opened: BrokerFolder, book: LinkBook, name: str, now: float) -> None:
    """Raise NameTaken for a name that is enrolled or has an open link, TopicError for an invalid one."""
    check_device(name)
    waiting = {link.device for link in book.links if link.state(now) == "open"}
    if name in waiting or name in _enrolled(opened) or name == opened.site.aggregator:
        raise NameTaken(f"{name!r} is enrolled, or has a link that is open: give another name")


def _password(request: LinkRequest) -> str:
    key = hmac.digest(request.secret.encode(), b"device-runtime/link/1" + request.claim.encode(), "sha256")
    return base64.urlsafe_b64encode(key[: register.PASSWORD_BYTES]).decode()


def _secret(request: LinkRequest) -> bytes:
    """The device's own key: derived from both secrets too, but not from the password."""
    return hmac.digest(
        request.secret.encode(), b"device-runtime/link-key/1" + request.claim.encode(), "sha256"
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
