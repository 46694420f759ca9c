"""Devices that fetch a model at the same time, block by block: how fast all of them together."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bare_mqtt import Connection, Fleet
from device_runtime.broker.wire import messages
from device_runtime.broker.wire.blobs import BLOCK, block_count
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.transfer import WINDOW
from device_runtime.broker.wire.url import BrokerUrl

from .load import CONNECTIONS, MB, Answers, Row, broker, opened, serving, up
from .uploads import model_of

AGAIN_S = 2.0
"""Seconds of silence after which a device asks again, as ours do."""


@dataclass
class Fetching:
    """A device that asks for a blob by windows, and asks again after silence."""

    device: str
    connection: Connection
    blob: Blob
    missing: set[int]
    requests: set[int] = field(default_factory=set)
    last_s: float = 0.0
    again: int = 0

    def ask(self, now: float) -> None:
        if self.requests and now - self.last_s > AGAIN_S:
            self.again += len(self.requests)
            self.requests.clear()
        if 2 * len(self.requests) > WINDOW:
            return
        blocks = sorted(self.missing - self.requests)[: WINDOW - len(self.requests)]
        if blocks:
            self.requests.update(blocks)
            self.last_s = now
            get = Get(blob=self.blob, blocks=tuple(blocks))
            up(self.connection, self.device, "get", messages.encode(get))

    def came(self, index: int, now: float) -> None:
        self.missing.discard(index)
        self.requests.discard(index)
        self.last_s = now
        self.ask(now)


def downloads(options: argparse.Namespace) -> list[Row]:
    """So many devices at once, one connection for several of them."""
    count, size = options.fetching, options.model_mb * MB
    with broker() as running, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bundle = model_of(size, Path(folder))
        answers = Answers()
        devices: dict[str, Fetching] = {}

        def on_message(_connection: Connection, topic: str, payload: bytes) -> None:
            parts = topic.split("/")
            if parts[5] == "block":
                devices[parts[3]].came(int(parts[7]), time.perf_counter())
            else:
                answers.heard(_connection, topic, payload)

        where = BrokerUrl.parse(running.url)
        fleet = Fleet(where.host, where.port, on_message)
        for i in range(CONNECTIONS):
            topics = [f"fl/v1/d/pi-{n}/dn/#" for n in range(i, count, CONNECTIONS)]
            fleet.add(f"load-{i}", *topics, *(["fl/v1/d/first/dn/#"] if i == 0 else []))
        with serving(running.url, Path(folder), "full", 1, bundle):
            blob = opened(fleet, answers).bundle
            for n in range(count):
                connection = fleet.connections[n % CONNECTIONS]
                blocks = set(range(block_count(blob)))
                devices[f"pi-{n}"] = Fetching(f"pi-{n}", connection, blob, blocks)
            started = time.perf_counter()
            while any(device.missing for device in devices.values()):
                for fetching in devices.values():
                    fetching.ask(time.perf_counter())
                fleet.turn()
                if time.perf_counter() - started > 900:
                    raise TimeoutError("not fetched in 900 s")
            seconds = time.perf_counter() - started
            fleet.close()
    again = sum(device.again for device in devices.values())
    total = count * block_count(blob)
    return [
        Row(
            f"{count} devices fetch {blob.size / MB:.1f} MB each at once",
            f"{count * blob.size / seconds / MB:.0f} MB/s",
            f"{seconds:.1f} s; {again} of {total} blocks of {BLOCK // 1024} KiB asked for again",
        )
    ]
