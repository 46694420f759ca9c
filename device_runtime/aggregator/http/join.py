"""What is under /join/: the page's files, what it must know, and a credential for who has a link."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from device_runtime.aggregator.intake.rate_limit import Flood
from device_runtime.aggregator.serving.join_address import Doorway
from device_runtime.broker.errors import BrokerError, BrokerRefused
from device_runtime.broker.security import one_time_links as links
from device_runtime.broker.security import register
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.security.one_time_links import LinkError, NameTaken, Opening
from device_runtime.broker.servers.broker_folder import Opened
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.messages import VERSION
from device_runtime.broker.wire.topics import TopicError

from . import gateway
from .callers import by_local_name, counted_as
from .gateway import Gateway
from .hosted import Hosted
from .pages import Pages

log = logging.getLogger(__name__)

MOST_BYTES = 4096
"""Of what is posted; a secret and a claim are about 120."""
BURST, RATE, ADDRESSES = 30.0, 1.0, 4096
"""Of exchanges: so many at once from one address, then so many a second; addresses that are remembered."""
TOLD_S, LOOK_S = 5.0, 0.1
"""Seconds in which Mosquitto is to know a new device, and between looks."""


@dataclass(frozen=True)
class Learnt:
    """A task, as the page shows it before it has joined. `over`: there is nothing to do in it any more."""

    name: str
    bundle: str
    rounds: int
    deadline_s: float
    kinds: tuple[str, ...]
    labels: tuple[str, ...] = ()
    input: dict[str, Any] = field(default_factory=dict)
    over: bool = False


class Join:
    """`clock`: seconds since 1970."""

    def __init__(
        self, doorway: Doorway, pages: Pages, hosted: list[Hosted], clock: Callable[[], float] = time.time
    ) -> None:
        self._doorway, self._pages = doorway, pages
        self._hosted, self._clock = hosted, clock
        self._flood = Flood(BURST, RATE, ADDRESSES)
        self.router = router = APIRouter(include_in_schema=False)
        reads = ["GET", "HEAD"]
        router.add_api_route("/join", lambda: RedirectResponse("join/", 308), methods=reads)
        router.add_api_route("/join/config.json", self.config, methods=reads)
        router.add_api_route("/join/enrol", self.enrol, methods=["POST"])
        router.add_api_route("/join/{path:path}", self.file, methods=reads)
        if doorway.passes_on:
            router.add_api_websocket_route(f"/join/{gateway.PATH}", Gateway(doorway).pass_on)

    def file(self, path: str, request: Request) -> Response:
        return self._pages.answer(path, request.headers)

    def config(self, request: Request) -> dict[str, Any]:
        """Where the broker is, what is learnt, and whether a link is needed to enrol. `gateway`: where it is
        reached at our own address, beside this; empty: at `broker`.

        Where the broker is open to this machine, it is told to who calls us by a name of this machine: a page
        of another site, whose name leads here, learns nothing (DNS rebinding).
        """
        doorway = self._doorway
        if doorway.passes_on and doorway.site is None and not by_local_name(request):
            raise HTTPException(403, "open to this machine only: ask as localhost")
        return {
            "version": 1,
            "protocol": VERSION,
            "enrolment": "link" if doorway.site else "open",
            "broker": {"url": doorway.broker, "user": "", "password": ""},
            "gateway": gateway.PATH if doorway.passes_on else "",
            "key": doorway.site.signer.public.hex() if doorway.site else "",
            "tasks": [_learnt(one) for one in self._hosted],
        }

    async def enrol(self, request: Request) -> dict[str, str]:
        """The credential of who has a link, as a token."""
        site = self._doorway.site
        if site is None or not self._doorway.writable:
            raise HTTPException(404, "no device is enrolled by links here")
        if not self._flood.lets(counted_as(request), self._clock()):
            raise HTTPException(429, "too many asked from there: again in a while", {"Retry-After": "5"})
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "a link is used by its own page only")
        enrolment = await run_in_threadpool(self._exchange, site, await _posted(request))
        return {"token": enrolment.token, "name": enrolment.name}

    def _exchange(self, site: Opened, opening: Opening) -> Enrolment:
        try:
            enrolment = links.use(site, opening, self._clock())
        except (NameTaken, TopicError) as error:
            raise HTTPException(409, str(error)) from None
        except LinkError as error:
            raise HTTPException(410 if error.over else 403, str(error)) from None
        except BrokerError as error:
            log.warning("a link could not be used: %s", error)
            raise HTTPException(503, "the device could not be enrolled", {"Retry-After": "10"}) from None
        told = register.tell(site)
        log.info("%s is enrolled by its link; %s", enrolment.name, told.text)
        self._wait_until_known(enrolment)
        return enrolment

    def _wait_until_known(self, enrolment: Enrolment) -> None:
        """Mosquitto reads its passwords a moment after it was told: until then it would refuse the device."""
        url = replace(self._doorway.reached, user=enrolment.name, password=enrolment.password)
        end = time.monotonic() + TOLD_S
        while time.monotonic() < end:
            link = Link(url, f"{enrolment.client_id}-new", queue.SimpleQueue(), LinkOptions())
            try:
                link.connect(TOLD_S)
            except BrokerRefused:
                time.sleep(LOOK_S)
                continue
            except BrokerError as error:
                log.warning("whether the broker knows %s cannot be seen: %s", enrolment.name, error)
                return
            finally:
                link.close()
            return
        log.warning("the broker does not know %s yet: have it read its passwords", enrolment.name)


def _learnt(hosted: Hosted) -> Learnt:
    """What the service goes by; what its bundle is about is not told before that runs."""
    task, over = hosted.task, hosted.watch.live().phase == "finished"
    kinds = tuple(kind.name for kind in task.kinds)
    known = Learnt(task.name, task.bundle, task.rounds, task.round_deadline_s, kinds, over=over)
    manifest = hosted.watch.manifest
    if manifest is None:
        return known
    return replace(known, labels=manifest.labels, input=msgspec.to_builtins(manifest.input))


async def _posted(request: Request) -> Opening:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"expected at most {MOST_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=Opening)
    except (msgspec.DecodeError, RecursionError):
        raise HTTPException(400, 'expected {"secret": "...", "claim": "...", "name": "..."}') from None
