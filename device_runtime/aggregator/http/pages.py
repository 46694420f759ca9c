"""The files of the join page: the browser's side as it lies in web/, under /join/, and nothing else of it."""

from __future__ import annotations

import gzip
import hashlib
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs
from starlette.datastructures import Headers
from starlette.responses import FileResponse, RedirectResponse, Response

from device_runtime.aggregator.errors import MissingExtra
from device_runtime.content import content

WEB = content("web")
VENDOR, LOCK = "vendor", "package-lock.json"
FOLDERS = ("page", "device", VENDOR)
HIDDEN = "vendor.js"
"""Of the scripts beside the folders, the one that is not the page's."""
NEEDED = "ort/ort-wasm-simd-threaded.wasm"
"""In vendor/: where it is missing, no page can train."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
PRESSED = (".html", ".css", ".js", ".mjs", ".json", ".svg")
"""What is sent in gzip's form. `npm run vendor` lays a `.br` beside what is large."""
SMALL = 1024
"""Bytes; what is not longer is sent as it is."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def root() -> Path:
    """The folder of the page. Raises MissingExtra."""
    if (WEB / "page" / "index.html").is_file():
        return WEB
    raise MissingExtra(f"the join page is not installed: {WEB} does not have it")


def kept_vendor(web: Path) -> Path:
    """Where `device-runtime web fetch` keeps the libraries of this page: others need others."""
    needed = hashlib.sha256((web / LOCK).read_bytes()).hexdigest()[:12]
    return Path(platformdirs.user_data_dir("device-runtime", appauthor=False)) / f"web-{needed}" / VENDOR


def vendor(web: Path) -> Path:
    """The libraries of the page. Raises MissingExtra with what to do."""
    for folder in (web / VENDOR, kept_vendor(web)):
        if (folder / NEEDED).is_file():
            return folder
    raise MissingExtra(
        "the page's libraries (onnxruntime-web, MQTT.js, MessagePack) are not here: run "
        "`device-runtime web fetch`, which needs Node.js 20 with npm"
    )


@dataclass(frozen=True)
class Found:
    """A file to be sent; `etag` is another when it has changed."""

    path: Path
    type: str
    size: int
    etag: str


class Pages:
    """What is under /join/. `policies`: of pages, and of what computes (the worker and its WASM)."""

    def __init__(self, web: Path, libraries: Path, policies: tuple[str, str]) -> None:
        self._web, self._libraries = web.resolve(), libraries.resolve()
        self._policies = policies
        self._pressed: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, broker: str) -> Pages:
        """Those that are installed here; `broker` as in `policies`. Raises MissingExtra."""
        web = root()
        return cls(web, vendor(web), policies(broker))

    def answer(self, path: str, headers: Headers) -> Response:
        """To GET or HEAD of `path`, which is below /join/."""
        if path == "":
            return RedirectResponse("page/", 308)
        found = self.find(path + "index.html" if path == "page/" else path)
        if found is None:
            return Response("there is no such file", 404, media_type="text/plain")
        return self._sent(found, headers, self._policies[computes(path)])

    def find(self, path: str) -> Found | None:
        """None for what is not there, or is not for browsers."""
        parts = path.split("/")
        if not all(_PART.fullmatch(part) for part in parts):
            return None
        top = len(parts) == 1 and path.endswith(".js") and path != HIDDEN
        if not top and parts[0] not in FOLDERS:
            return None
        within = self._libraries if parts[0] == VENDOR else self._web
        file = within.joinpath(*parts[1:] if parts[0] == VENDOR else parts)
        kind = TYPES.get(file.suffix)
        if kind is None or not file.is_file() or not file.resolve().is_relative_to(within):
            return None
        state = file.stat()
        return Found(file, kind, state.st_size, f"{state.st_mtime_ns:x}-{state.st_size:x}")

    def _sent(self, found: Found, headers: Headers, policy: str) -> Response:
        taken = {word.partition(";")[0].strip() for word in headers.get("accept-encoding", "").split(",")}
        brotli = found.path.with_name(found.path.name + ".br")
        form = "br" if "br" in taken and brotli.is_file() else ""
        if not form and "gzip" in taken and found.path.suffix in PRESSED and found.size > SMALL:
            form = "gzip"
        told = {
            "etag": f'W/"{found.etag}{form}"',
            "cache-control": "no-cache",
            "vary": "accept-encoding",
            "content-security-policy": policy,
            "cross-origin-embedder-policy": "require-corp",
            "permissions-policy": "camera=(self), microphone=(self), screen-wake-lock=(self), geolocation=()",
        }
        if told["etag"] in (one.strip() for one in headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=told)
        if form:
            told["content-encoding"] = form
        if form == "gzip":
            return Response(self._gzip(found), headers=told, media_type=found.type)
        return FileResponse(brotli if form else found.path, headers=told, media_type=found.type)

    def _gzip(self, found: Found) -> bytes:
        """Made once for each state of a file."""
        key = f"{found.path} {found.etag}"
        with self._lock:
            if key not in self._pressed:
                for old in [one for one in self._pressed if one.startswith(f"{found.path} ")]:
                    del self._pressed[old]
                self._pressed[key] = gzip.compress(found.path.read_bytes(), 6, mtime=0)
            return self._pressed[key]


def computes(path: str) -> bool:
    """Whether what lies there may compile WASM: a worker has the policy that its own script came with."""
    return path == "worker.js" or path.startswith(f"{VENDOR}/ort/")


def policies(broker: str) -> tuple[str, str]:
    """Content-Security-Policy of pages, and of what computes. `broker`: its WebSockets, as a URL; empty where
    pages reach it at our own address.
    """
    parts = urlsplit(broker)
    place = f" {parts.scheme}://{parts.netloc}" if broker else ""
    page = (
        "default-src 'none'; script-src 'self'{wasm}; worker-src 'self'; style-src 'self'; "
        "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'{place}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.format(wasm="", place=place), page.format(wasm=" 'wasm-unsafe-eval'", place=place)
