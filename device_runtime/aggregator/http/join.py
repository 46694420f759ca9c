"""Serves the join page under /join/, its settings, and credentials in exchange for one-time links."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, RedirectResponse, Response

from device_runtime.aggregator.configuration.join_address import BrowserAccess
from device_runtime.aggregator.errors import MissingExtra
from device_runtime.aggregator.limits import RateLimit
from device_runtime.broker.errors import BrokerError, BrokerRefused
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers import register
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.one_time_links import LinkError, LinkRequest, NameTaken
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.messages import VERSION
from device_runtime.broker.wire.topics import TopicError
from device_runtime.content import content
from device_runtime.user_account import data_folder

from . import gateway
from .gateway import Gateway
from .security import by_local_name, caller_address
from .watch import ServedTask

log = logging.getLogger(__name__)

MOST_BYTES = 4096
"""The most bytes of a posted request; a secret and a claim have about 120."""
BURST, RATE, ADDRESSES = 30.0, 1.0, 4096
"""Limits on exchanges of links: at once from one address, then a second; addresses that are remembered."""
KNOWN_WITHIN_S, LOOK_S = 5.0, 0.1
"""Seconds to wait until Mosquitto accepts a new device, and between two attempts."""


@dataclass(frozen=True)
class JoinableTask:
    """A task as the page shows it before it has joined.

    `over`: the task is finished. `model_bytes`: what a device fetches before its first round, 0 while it is
    not known.
    """

    name: str
    bundle: str
    rounds: int
    deadline_s: float
    kinds: tuple[str, ...]
    labels: tuple[str, ...] = ()
    input: dict[str, Any] = field(default_factory=dict)
    over: bool = False
    title: str = ""
    about: str = ""
    model_bytes: int = 0
    ask: str = ""


class JoinRoutes:
    """The routes of the join page. `clock` gives seconds since 1970."""

    def __init__(
        self,
        browser_access: BrowserAccess,
        pages: JoinFiles,
        hosted: list[ServedTask],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._browser_access, self._pages = browser_access, pages
        self._hosted, self._clock = hosted, clock
        self._rate_limit = RateLimit(BURST, RATE, ADDRESSES)
        self.router = router = APIRouter(include_in_schema=False)
        reads = ["GET", "HEAD"]
        router.add_api_route("/join", lambda: RedirectResponse("join/", 308), methods=reads)
        router.add_api_route("/join/config.json", self.config, methods=reads)
        router.add_api_route("/join/enrol", self.enrol, methods=["POST"])
        router.add_api_route("/join/{path:path}", self.file, methods=reads)
        if browser_access.passes_on:
            router.add_api_websocket_route(f"/join/{gateway.PATH}", Gateway(browser_access).pass_on)

    def file(self, path: str, request: Request) -> Response:
        return self._pages.answer(path, request.headers)

    def config(self, request: Request) -> dict[str, Any]:
        """The address of the broker, the tasks, and whether a link is needed to enrol.

        `gateway` is the path of the MQTT gateway at the address of this page; if it is empty, the page
        connects to `broker`. If the broker is open to this machine only, requests that do not name this
        machine by a local name are refused: a page of another site must learn nothing (DNS rebinding).
        `page_bytes`: of the page's files as a first visit loads them.
        """
        browser_access = self._browser_access
        if browser_access.passes_on and browser_access.site is None and not by_local_name(request):
            raise HTTPException(403, "open to this machine only: use the host name localhost")
        return {
            "version": 1,
            "protocol": VERSION,
            "enrolment": "link" if browser_access.site else "open",
            "broker": {"url": browser_access.broker, "user": "", "password": ""},
            "gateway": gateway.PATH if browser_access.passes_on else "",
            "page_bytes": self._pages.first_visit_bytes,
            "key": browser_access.site.signer.public.hex() if browser_access.site else "",
            "tasks": [_joinable(service) for service in self._hosted],
        }

    async def enrol(self, request: Request) -> dict[str, str]:
        """Exchange a one-time link for a credential, as a token."""
        site = self._browser_access.site
        if site is None or not self._browser_access.writable:
            raise HTTPException(404, "this aggregator enrols no devices by links")
        if not self._rate_limit.lets(caller_address(request), self._clock()):
            raise HTTPException(
                429, "too many requests from this address: try again in a while", {"Retry-After": "5"}
            )
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "a link can only be used by its own page")
        enrolment = await run_in_threadpool(self._exchange, site, await _posted(request))
        return {"token": enrolment.token, "name": enrolment.name}

    def _exchange(self, site: BrokerFolder, opening: LinkRequest) -> Enrolment:
        """Enrol a device with its link. Raises HTTPException 403, 409, 410 or 503."""
        try:
            enrolment = links.use(site, opening, self._clock())
        except (NameTaken, TopicError) as error:
            raise HTTPException(409, str(error)) from None
        except LinkError as error:
            raise HTTPException(410 if error.over else 403, str(error)) from None
        except BrokerError as error:
            log.warning("a link could not be used: %s", error)
            raise HTTPException(503, "the device could not be enrolled", {"Retry-After": "10"}) from None
        reload = register.reload_mosquitto(site)
        log.info("%s is enrolled by its link; %s", enrolment.name, reload.text)
        self._wait_until_known(enrolment)
        return enrolment

    def _wait_until_known(self, enrolment: Enrolment) -> None:
        """Wait until Mosquitto accepts the device: it reads changed passwords only after a moment."""
        url = replace(self._browser_access.reached, user=enrolment.name, password=enrolment.password)
        end = time.monotonic() + KNOWN_WITHIN_S
        while time.monotonic() < end:
            link = Link(url, f"{enrolment.client_id}-new", queue.SimpleQueue(), LinkOptions())
            try:
                link.connect(KNOWN_WITHIN_S)
            except BrokerRefused:
                time.sleep(LOOK_S)
                continue
            except BrokerError as error:
                log.warning("cannot check whether the broker knows %s: %s", enrolment.name, error)
                return
            finally:
                link.close()
            return
        log.warning("the broker does not know %s yet: make it reload its passwords", enrolment.name)


def _joinable(hosted: ServedTask) -> JoinableTask:
    """A task for the join page; labels and input are empty until the service has started."""
    task, over = hosted.task, hosted.watch.live().phase == "finished"
    kinds = tuple(kind.name for kind in task.kinds)
    joinable = JoinableTask(
        task.name,
        Path(task.bundle).name,  # without its folder: everybody may read this
        task.rounds,
        task.round_deadline_s,
        kinds,
        over=over,
        title=task.title or task.name,
        about=task.about,
        model_bytes=hosted.watch.model_bytes,
        ask=task.ask,
    )
    manifest = hosted.watch.manifest
    if manifest is None:
        return joinable
    return replace(joinable, labels=manifest.labels, input=msgspec.to_builtins(manifest.input))


async def _posted(request: Request) -> LinkRequest:
    """The posted request. Raises HTTPException 400, 413 or 415."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"expected at most {MOST_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=LinkRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, 'expected {"secret": "...", "claim": "...", "name": "..."}') from None


# The files of the join page: a part of web/, served under /join/.

WEB = content("web")
VENDOR, LOCK = "vendor", "package-lock.json"
FOLDERS = ("page", "device", VENDOR)
NOT_SERVED = ("bundle.js", "vendor.js")
"""The scripts at the top of web/ that are not part of the page."""
BUNDLED = f"{VENDOR}/bundled"
"""The folder of the page's scripts with all that each imports; they are sent in place of the modules."""
NEEDED = "ort/ort-wasm-simd-threaded.wasm"
"""A file in vendor/ without which no page can train."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
GZIPPED = (".html", ".css", ".js", ".mjs", ".json", ".svg")
"""Files that are sent with gzip. `npm run vendor` puts a `.br` (Brotli) next to large files."""
SMALLEST_GZIPPED = 1024
"""Bytes of the largest file that is not compressed."""
LISTING = "files.json"
"""The path of `JoinFiles.listing`, from which `offline.js` keeps the page."""
LATER = re.compile(rf"{VENDOR}/ort/.*(webgpu|asyncify)")
"""Files that a page loads only where it tries WebGPU."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def page_folder() -> Path:
    """The folder of the page. Raises MissingExtra if the page is not installed."""
    if (WEB / "page" / "index.html").is_file():
        return WEB
    raise MissingExtra(f"the join page is not installed: {WEB} does not have it")


def fetched_library_folder(web: Path) -> Path:
    """Where `device-runtime web fetch` puts the libraries, by a hash of the versions that this page needs."""
    needed = hashlib.sha256((web / LOCK).read_bytes()).hexdigest()[:12]
    return data_folder() / f"web-{needed}" / VENDOR


def library_folder(web: Path) -> Path:
    """The libraries of the page. Raises MissingExtra with what to do."""
    for folder in (web / VENDOR, fetched_library_folder(web)):
        if (folder / NEEDED).is_file():
            return folder
    raise MissingExtra(
        "the page's libraries (onnxruntime-web, MQTT.js, MessagePack) are not installed: run "
        "`device-runtime web fetch`, which needs Node.js 20 with npm"
    )


@dataclass(frozen=True)
class FoundFile:
    """A file to send. `size` is in bytes; `etag` changes with the file."""

    path: Path
    type: str
    size: int
    etag: str


class JoinFiles:
    """Serves the files under /join/. `policies`: of pages, and of scripts that compute (worker and WASM)."""

    def __init__(self, web: Path, libraries: Path, policies: tuple[str, str]) -> None:
        self._web, self._libraries = web.resolve(), libraries.resolve()
        self._policies = policies
        self._gzipped: dict[str, bytes] = {}
        self._hashes: dict[str, str] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, broker: str) -> JoinFiles:
        """The installed pages; `broker` as in `policies`. Raises MissingExtra."""
        web = page_folder()
        pages = cls(web, library_folder(web), policies(broker))
        if not pages._bundled_modules():
            log.info(
                "the page's modules are sent one by one: `device-runtime web fetch` makes one file of them"
            )
        return pages

    def answer(self, path: str, headers: Headers) -> Response:
        """The response to GET or HEAD of `path`, below /join/."""
        if path == "":
            return RedirectResponse("page/", 308)
        if path == LISTING:
            return self._listed(headers)
        file = self.find(path + "index.html" if path == "page/" else path)
        if file is None:
            return Response("there is no such file", 404, media_type="text/plain")
        return self._sent(file, headers, self._policies[computes(path)])

    def find(self, path: str) -> FoundFile | None:
        """The file that is sent for a path; None if it does not exist or is not for browsers."""
        bundled = self._file(f"{BUNDLED}/{path}")
        return bundled if bundled and self._bundled_modules() else self._file(path)

    def _bundled_modules(self) -> set[str]:
        """The modules that the bundles consist of; none if one has changed since the bundles were written."""
        listed = self._libraries / "bundled" / "inputs.json"
        hashes = json.loads(listed.read_bytes()) if listed.is_file() else {}
        current = all((file := self._file(path)) and self._hash(file) == hashes[path] for path in hashes)
        return set(hashes) if current else set()

    def _file(self, path: str) -> FoundFile | None:
        parts = path.split("/")
        if not all(_PART.fullmatch(part) for part in parts):
            return None
        top = len(parts) == 1 and path.endswith(".js") and path not in NOT_SERVED
        if not top and parts[0] not in FOLDERS:
            return None
        within = self._libraries if parts[0] == VENDOR else self._web
        file = within.joinpath(*parts[1:] if parts[0] == VENDOR else parts)
        kind = TYPES.get(file.suffix)
        if kind is None or not file.is_file() or not file.resolve().is_relative_to(within):
            return None
        state = file.stat()
        return FoundFile(file, kind, state.st_size, f"{state.st_mtime_ns:x}-{state.st_size:x}")

    def listing(self) -> dict[str, dict[str, str]]:
        """The SHA-256 of each file of the page, in base64, by its path: `files`, and those of `LATER`."""
        folders = [(self._libraries if name == VENDOR else self._web / name, name) for name in FOLDERS]
        paths = [path.name for path in self._web.glob("*.js")]
        for folder, name in folders:
            paths += [f"{name}/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.*")]
        bundled = self._bundled_modules()
        alone = {path for path in paths if not path.startswith(BUNDLED)} - bundled
        alone |= {path for path in bundled if self._file(f"{BUNDLED}/{path}")}
        files = {path: self._hash(file) for path in sorted(alone) if (file := self.find(path))}
        later = {path: files.pop(path) for path in list(files) if LATER.match(path)}
        return {"files": files, "later": later}

    def _listed(self, headers: Headers) -> Response:
        """The response with the listing; status 304 alone if the browser has it already."""
        data = json.dumps(self.listing(), separators=(",", ":")).encode()
        etag = f'W/"{hashlib.sha256(data).hexdigest()[:16]}"'
        about = {"etag": etag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if etag in (tag.strip() for tag in headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=about)
        if "gzip" in headers.get("accept-encoding", ""):
            about["content-encoding"] = "gzip"
            data = gzip.compress(data, 6, mtime=0)
        return Response(data, headers=about, media_type="application/json")

    @property
    def first_visit_bytes(self) -> int:
        """Bytes of all files of the page that a first visit loads, as they are sent to a browser."""
        return sum(self._sent_bytes(file) for path in self.listing()["files"] if (file := self.find(path)))

    def _sent_bytes(self, file: FoundFile) -> int:
        """The size of a file as `_sent` sends it to a browser that takes Brotli."""
        brotli = file.path.with_name(file.path.name + ".br")
        if brotli.is_file():
            return brotli.stat().st_size
        zipped = file.path.suffix in GZIPPED and file.size > SMALLEST_GZIPPED
        return len(self._gzip(file)) if zipped else file.size

    def _hash(self, file: FoundFile) -> str:
        """The SHA-256 of a file in base64, cached until the file changes."""
        key = f"{file.path} {file.etag}"
        if key not in self._hashes:
            digest = hashlib.sha256(file.path.read_bytes()).digest()
            self._hashes[key] = base64.b64encode(digest).decode()
        return self._hashes[key]

    def _sent(self, file: FoundFile, headers: Headers, policy: str) -> Response:
        encodings = {word.partition(";")[0].strip() for word in headers.get("accept-encoding", "").split(",")}
        brotli = file.path.with_name(file.path.name + ".br")
        form = "br" if "br" in encodings and brotli.is_file() else ""
        if not form and "gzip" in encodings and file.path.suffix in GZIPPED and file.size > SMALLEST_GZIPPED:
            form = "gzip"
        response_headers = {
            "etag": f'W/"{file.etag}{form}"',
            "cache-control": "no-cache",
            "vary": "accept-encoding",
            "content-security-policy": policy,
            "cross-origin-embedder-policy": "require-corp",
            "permissions-policy": "camera=(self), microphone=(self), screen-wake-lock=(self), geolocation=()",
        }
        if response_headers["etag"] in (tag.strip() for tag in headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=response_headers)
        if form:
            response_headers["content-encoding"] = form
        if form == "gzip":
            return Response(self._gzip(file), headers=response_headers, media_type=file.type)
        return FileResponse(brotli if form else file.path, headers=response_headers, media_type=file.type)

    def _gzip(self, file: FoundFile) -> bytes:
        """The compressed file, cached until the file changes."""
        key = f"{file.path} {file.etag}"
        with self._lock:
            if key not in self._gzipped:
                for old in [name for name in self._gzipped if name.startswith(f"{file.path} ")]:
                    del self._gzipped[old]
                self._gzipped[key] = gzip.compress(file.path.read_bytes(), 6, mtime=0)
            return self._gzipped[key]


def computes(path: str) -> bool:
    """Whether the script at a path may compile WASM: a worker has the policy of its own script."""
    return path == "worker.js" or path.startswith(f"{VENDOR}/ort/")


def policies(broker: str) -> tuple[str, str]:
    """The Content-Security-Policy of pages, and that of scripts that compute.

    `broker`: the URL of its WebSockets; empty if pages reach it through the gateway at this address.
    """
    parts = urlsplit(broker)
    place = f" {parts.scheme}://{parts.netloc}" if broker else ""
    page = (
        "default-src 'none'; script-src 'self'{wasm}; worker-src 'self'; style-src 'self'; "
        "img-src 'self' blob: data:; media-src 'self' blob:; manifest-src 'self'; connect-src 'self'{place}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.format(wasm="", place=place), page.format(wasm=" 'wasm-unsafe-eval'", place=place)
