"""REST routes to make, list and revoke one-time links, each with its QR code; they need the token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi import Path as InPath

from device_runtime.aggregator.configuration.join_address import BrowserAccess
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.audit import recorded
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers import register
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.one_time_links import OneTimeLink, State
from device_runtime.broker.wire.topics import TopicError

from .api import TokenGuard

Device = Annotated[str, Query(max_length=64, description="Name of the device; if empty, one is drawn.")]
Minutes = Annotated[float | None, Query(gt=0, le=7 * 24 * 60, description="Minutes that the link is valid.")]


@dataclass(frozen=True)
class Invitation:
    """A one-time link. Times are seconds since 1970; `used` and `revoked` are null until that happens."""

    id: str
    device: str
    state: State
    made: int
    ends: int
    used: int | None
    revoked: int | None


@dataclass(frozen=True)
class NewLink:
    """A new link; its address is shown only here. `qr`: rows of its QR code, 1 for dark."""

    link: Invitation
    url: str
    qr: list[str]


@dataclass(frozen=True)
class Invitations:
    """The join page and its links. `page`: its address, "" if there is none. `makes`: links can be made here.

    `open`: browsers join without a link; then `qr` is the QR code of the page.
    """

    page: str = ""
    open: bool = False
    makes: bool = False
    qr: list[str] = field(default_factory=list)
    links: list[Invitation] = field(default_factory=list)


class InvitationRoutes:
    """The routes of one-time links. Without browser access there is no join page.

    `listens` gives the address of the HTTP server, `clock` seconds since 1970.
    """

    def __init__(
        self,
        browser_access: BrowserAccess | None,
        guard: TokenGuard,
        listens: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._browser_access, self._guard = browser_access, guard
        self._listens, self._clock = listens, clock
        no_token: dict[int | str, dict[str, Any]] = {401: {"description": "The token is missing or wrong"}}
        refused: dict[int | str, dict[str, Any]] = {
            403: {"description": "The service asks for no token, or makes no links"},
            409: {"description": "The device or link exists already, or does not exist"},
        }
        self.router = APIRouter(dependencies=[Depends(guard)], responses=no_token)
        add, path = self.router.add_api_route, "/api/v1/links"
        add(path, self.listed, summary="The join page for browsers, and its one-time links")
        add(path, self.make, methods=["POST"], status_code=201, summary="A one-time link", responses=refused)
        add(
            f"{path}/{{name}}",
            self.revoke,
            methods=["DELETE"],
            summary="Revoke a link, and the device that was enrolled with it",
            responses={
                **refused,
                503: {"description": "It is revoked, but Mosquitto still accepts its device"},
            },
        )

    @property
    def page(self) -> str:
        """The address of the join page."""
        return self._browser_access.page(self._listens()) if self._browser_access else ""

    def listed(self) -> Invitations:
        browser_access = self._browser_access
        if browser_access is None:
            return Invitations()
        if browser_access.site is None:
            return Invitations(self.page, open=True, qr=rows_of(self.page))
        now = self._clock()
        try:
            recent_links = links.read_links(browser_access.site).recent(now)
        except BrokerError as error:
            raise HTTPException(503, str(error)) from None
        makes = browser_access.writable and not self._guard.open
        return Invitations(self.page, makes=makes, links=[_invitation(link, now) for link in recent_links])

    def make(self, request: Request, device: Device = "", minutes: Minutes = None) -> NewLink:
        site, browser_access = self._site(), self._browser_access
        lasts_s = 60 * minutes if minutes else browser_access.link_s if browser_access else 0
        now = self._clock()
        try:
            with recorded(site.folder, self._guard.operator(request), "make a link", device or "a browser"):
                link, secret = links.make(site, now, lasts_s, device)
        except (BrokerError, TopicError) as error:
            raise HTTPException(409, str(error)) from None
        url = links.address(self.page, secret)
        return NewLink(_invitation(link, now), url, rows_of(url))

    def revoke(self, name: Annotated[str, InPath(max_length=64)], request: Request) -> Invitation:
        site, now = self._site(), self._clock()
        try:
            with recorded(site.folder, self._guard.operator(request), "revoke", name):
                link = links.revoke(site, name, now)
        except BrokerError as error:
            raise HTTPException(409, str(error)) from None
        try:
            if link.used:
                register.reload_after_revocation(site, link.device)
        except BrokerError as error:
            raise HTTPException(503, str(error)) from None
        return _invitation(link, now)

    def _site(self) -> BrokerFolder:
        """The folder of the links. Raises HTTPException 403 if no link can be made here."""
        if self._guard.open:
            raise HTTPException(403, "links need a token: set http.token_file")
        if self._browser_access is None or self._browser_access.site is None:
            raise HTTPException(
                403, "this aggregator enrols no devices: start with serve --web --enrolment DIR"
            )
        if not self._browser_access.writable:
            raise HTTPException(403, f"{self._browser_access.site.folder} is incomplete or not writable")
        return self._browser_access.site


def rows_of(text: str) -> list[str]:
    """The QR code of a text, 1 for dark, without the light border that must be around it."""
    import segno  # in the extra `aggregator`

    code = segno.make(text, error="m", micro=False)
    return ["".join("1" if module else "0" for module in row) for row in code.matrix]


def _invitation(link: OneTimeLink, now: float) -> Invitation:
    return Invitation(
        id=link.id,
        device=link.device,
        state=link.state(now),
        made=link.made,
        ends=link.ends,
        used=link.used or None,
        revoked=link.revoked or None,
    )
