"""Strangers at the aggregator's socket: does `/healthz` answer others while they stay?

    nice .venv/bin/python benchmarks/strangers.py                      # 300 of each sort, each way: 2 minutes
    nice .venv/bin/python benchmarks/strangers.py --count 30 --seconds 3 --ways HTTP

`serve --web` runs as a process. Another process opens `--count` connections of each sort, from one address of
this machine (127.0.0.1), then from nine (127.0.0.1 to 127.0.0.9), and opens each again that is closed:

* silent ones send nothing: no TLS handshake, no request, over WebSocket no CONNECT;
* slow ones send a byte of their request each second;
* endless ones send a body, or a message, that does not end.

Meanwhile 127.0.0.10 asks for `/healthz` over and over, each time by a new connection.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from tabulate import tabulate

from device_runtime.broker.servers.production import issue, make_authority

COMMAND = "import sys; from device_runtime.cli import main; sys.exit(main(sys.argv[1:]))"
WAYS = ("HTTP", "HTTPS", "WebSocket")
SORTS = ("silent", "slow", "endless")
ASKER = "127.0.0.10"
PART, PAUSE_S = b"x" * 16384, 0.5
"""What an endless one sends at a time, and between."""
AGAIN_S = 0.5
ASK_EVERY_S, PATIENCE_S, MOST_S = 0.1, 10.0, 2.0
POST = (
    b"POST /join/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 999999999\r\n\r\n"
)
UPGRADE = (
    b"GET /join/mqtt HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@dataclass(frozen=True)
class Site:
    """Where the aggregator answers."""

    host: str
    port: int
    trust: ssl.SSLContext | None

    async def opened(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from this address of ours."""
        return await asyncio.open_connection(
            self.host,
            self.port,
            ssl=self.trust,
            local_addr=(source, 0),
            server_hostname="127.0.0.1" if self.trust else None,
        )


async def stranger(site: Site, way: str, sort: str, source: str) -> None:
    """One stranger, until it is closed."""
    bare = Site(site.host, site.port, None)
    reader, writer = await (bare if sort == "silent" and way != "WebSocket" else site).opened(source)
    try:
        if way == "WebSocket":
            writer.write(UPGRADE % f"localhost:{site.port}".encode())
            await reader.readuntil(b"\r\n\r\n")
        watch = asyncio.ensure_future(reader.read())
        watch.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        begin = (
            b"\x82\x7e\x10\x00\0\0\0\0\x10\x80\x20"
            if way == "WebSocket"
            else b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
        )
        if sort == "endless":
            writer.write(b"\x02\xff\0\0\0\0\0\x07\xff\xff\0\0\0\0" if way == "WebSocket" else POST)
        for number in range(10**9):
            if watch.done():
                return
            if sort == "silent":
                await asyncio.wait([watch])
            elif sort == "slow":
                writer.write(begin[number : number + 1] or b"x")
                await asyncio.wait([watch], timeout=1.0)
            else:
                writer.write(PART)
                await writer.drain()
                await asyncio.wait([watch], timeout=PAUSE_S)
    finally:
        writer.transport.abort()


async def strangers(site: Site, way: str, count: int, sources: list[str]) -> None:
    """Opens all, each again when it is closed, and prints their number."""
    opened = dict.fromkeys(SORTS, 0)

    async def again(sort: str, source: str) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                opened[sort] += 1
                await stranger(site, way, sort, source)
            await asyncio.sleep(AGAIN_S)

    tasks = [
        asyncio.ensure_future(again(sort, sources[n % len(sources)])) for n in range(count) for sort in SORTS
    ]
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 600)
    for task in tasks:
        task.cancel()


async def answer_s(site: Site) -> float:
    """Seconds until `/healthz` has answered; raises OSError, TimeoutError."""
    began = time.monotonic()

    async def ask() -> None:
        reader, writer = await site.opened(ASKER)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.transport.abort()
        if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")):
            raise ConnectionError(f"{answer[:40]!r}")

    await asyncio.wait_for(ask(), PATIENCE_S)
    return time.monotonic() - began


async def asked_for(site: Site, seconds: float) -> tuple[list[float], int]:
    """The seconds of each answer, and how many did not come."""
    answers, failed, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            answers.append(await answer_s(site))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            failed += 1
        await asyncio.sleep(ASK_EVERY_S)
    return answers, failed


@contextmanager
def served(way: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """`serve` with a page to join, and its address and log."""
    words = ["serve", "--bundle", "digits-wrn-10-1", "--min-devices", "99", "--web", "--http-open"]
    config = folder / "server.toml"
    config.write_text(
        "[http]\nport = 0\n"
        + (f'cert = "{folder}/c.pem"\nkey = "{folder}/k.pem"\n' if way == "HTTPS" else "")
    )
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                COMMAND,
                *words,
                "--run-dir",
                str(folder / "run"),
                "--config",
                str(config),
            ],
            stdout=out,
            stderr=out,
        )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            if match := re.search(r"http: (https?://\S+)", log.read_text()):
                yield match[1], log
                return
            time.sleep(0.1)
        raise RuntimeError(log.read_text())
    finally:
        process.terminate()
        process.wait(30)


def certificate(folder: Path) -> ssl.SSLContext:
    """Trust in the certificate of the site, whose files are written."""
    now = datetime.now(timezone.utc)
    authority = make_authority("strangers", now, 2)
    pair = issue(authority, ["127.0.0.1"], now, 1)
    (folder / "c.pem").write_text(pair.certificate)
    (folder / "k.pem").write_text(pair.key)
    (folder / "ca.pem").write_text(authority.certificate)
    return ssl.create_default_context(cadata=authority.certificate)


def measured(way: str, addresses: int, options: argparse.Namespace) -> list[object]:
    """A row of the table."""
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        folder = Path(name)
        trust = certificate(folder)
        with served(way, folder) as (url, log):
            parts = urlsplit(url)
            site = Site(parts.hostname or "", parts.port or 0, trust if way == "HTTPS" else None)
            words = [
                "--strange",
                way,
                str(site.port),
                str(addresses),
                str(folder / "ca.pem"),
                "--count",
                str(options.count),
            ]
            before = len(log.read_bytes())
            others = subprocess.Popen([sys.executable, __file__, *words])
            try:
                time.sleep(1.0)
                answers, failed = asyncio.run(asked_for(site, options.seconds))
            finally:
                others.kill()
                others.wait()
            lines = log.read_bytes()[before:]
    answers.sort()
    middle = answers[len(answers) // 2] if answers else float("nan")
    slowest = answers[-1] if answers else float("nan")
    return [
        way,
        addresses,
        3 * options.count,
        len(answers),
        failed,
        middle,
        slowest,
        lines.count(b"Traceback"),
        lines.count(b"\n"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="of each sort")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each row")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--strange", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.strange:
        way, port, addresses, ca = options.strange
        site = Site("127.0.0.1", int(port), ssl.create_default_context(cafile=ca) if way == "HTTPS" else None)
        asyncio.run(strangers(site, way, options.count, [f"127.0.0.{n + 1}" for n in range(int(addresses))]))
        return 0
    rows = [measured(way, addresses, options) for way in options.ways.split(",") for addresses in (1, 9)]
    headers = (
        "way",
        "addresses",
        "strangers",
        "answers",
        "failed",
        "median s",
        "slowest s",
        "tracebacks",
        "lines of log",
    )
    print(tabulate(rows, headers, floatfmt=".3f"))
    return 0 if all(not row[4] and row[6] <= MOST_S for row in rows) else 1  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
