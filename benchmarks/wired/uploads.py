"""Contributions that are fetched block by block: how fast, and in how much memory."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.bare_mqtt import Fleet, publish
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import BLOCK, blob_of
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle

from .load import (
    CONNECTIONS,
    MB,
    SERVE,
    Answers,
    Row,
    broker,
    connected,
    contribution,
    opened,
    serving,
    stream,
    up,
)
from .subscriber import beside

WARM = 8
"""Uploads before the clock runs: what is loaded once is loaded."""
IN_FLIGHT_BLOCKS = 64
"""Blocks on their way at most, as many as the aggregator asks for."""


def model_of(size: int, folder: Path) -> str:
    """A bundle whose full update has about `size` bytes: an MLP, exported here."""
    inputs = 256
    hidden = round(size / 4 / (inputs + 10))
    words = f"export mlp --set inputs={inputs} --set hidden={hidden} --set depth=1 --input 1,16,16"
    command = SERVE.replace("['serve', *sys.argv[1:]]", "sys.argv[1:]")
    labels = ",".join(map(str, range(10)))
    out = folder / f"mlp-{size}"
    subprocess.run(
        [sys.executable, "-c", command, *words.split(), "--labels", labels, "--out", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return str(out)


@dataclass
class Senders:
    """Devices that announce updates and give the blocks that they are asked for, from `contents` by hash."""

    fleet: Fleet
    answers: Answers
    contents: dict[bytes, bytes]

    def send(self, announcements: list[tuple[str, bytes]], at_once: int) -> float:
        """Seconds until all have a receipt; so many are announced and not receipted at most."""
        started, sent, before = time.perf_counter(), 0, len(self.answers.receipts)
        while (done := len(self.answers.receipts) - before) < len(announcements):
            while sent < len(announcements) and sent - done < at_once:
                connection = self.fleet.connections[sent % CONNECTIONS]
                connection.out += publish(*announcements[sent], connection.next_mid())
                sent += 1
            self.fleet.turn()
            self._give()
            if time.perf_counter() - started > 900:
                raise TimeoutError(f"{done} of {len(announcements)} were receipted in 900 s")
        return time.perf_counter() - started

    def _give(self) -> None:
        while self.answers.gets:
            device, get = self.answers.gets.popleft()
            connection = self.fleet.connections[hash(device) % CONNECTIONS]
            body = self.contents[get.blob.sha]
            for index in get.blocks:
                block = body[index * BLOCK : (index + 1) * BLOCK]
                up(connection, device, topics.block(get.blob.sha, index), block)


def uploads(options: argparse.Namespace, size: int, count: int) -> tuple[float, int, int]:
    """Contributions of about `size` bytes: (seconds, bytes of one, growth of the aggregator in bytes)."""
    with broker() as running, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bundle = model_of(size, Path(folder))
        weights = Bundle.open(Path(bundle)).weights()
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        # every device sends other bytes: equal contents would be fetched once
        body = tensors.encode(weights)
        with serving(running.url, Path(folder), "full", count, bundle) as process:
            offer = opened(fleet, answers)
            bodies = [_varied(body, number) for number in range(count)]
            announcements = [
                (
                    topics.up(f"pi-{number}", "contribution"),
                    contribution(offer, "full", b"", blob=blob_of(content)),
                )
                for number, content in enumerate(bodies)
            ]
            senders = Senders(fleet, answers, {blob_of(content).sha: content for content in bodies})
            senders.send(announcements[:WARM], WARM)
            before, watch = process.memory_info().rss, _Watch(process)
            seconds = senders.send(announcements[WARM:], 16)
            peak = watch.end()
            fleet.close()
        wrong = {status for status in answers.receipts.values() if status != "accepted"}
    if wrong:
        raise AssertionError(f"refused: {list(wrong)[:3]}")
    return seconds, len(body), max(0, peak - before)


class _Watch:
    """The largest resident memory of a process, looked at twenty times a second."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._peak, self._over = process, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            try:
                self._peak = max(self._peak, self._process.memory_info().rss)
            except psutil.Error:
                return

    def end(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak


def _varied(body: bytes, number: int) -> bytes:
    """The same tensors but for the last value."""
    return body[:-4] + np.float32(number * 1e-3).tobytes()


def chunks(options: argparse.Namespace) -> list[Row]:
    """Uploads in blocks, against the bare broker in the same run."""
    seconds, size, _ = uploads(options, 4 * MB, options.uploads)
    total = (options.uploads - WARM) * size
    rate, bare, library = total / seconds / MB, carried(total) / MB, answered(total) / MB
    return [
        Row(
            f"uploads of {size / MB:.1f} MB in blocks, verified and on disk",
            f"{rate:.0f} MB/s",
            f"{bare:.0f} MB/s in messages of 64 KiB to a subscriber that only counts",
            f"60%: it is {100 * rate / bare:.0f}%",
        ),
        Row(
            "the same bytes to the aggregator's MQTT library, which keeps nothing",
            f"{library:.0f} MB/s",
            f"{100 * library / bare:.0f}% of the bare broker; uploads are {100 * rate / library:.0f}% of it",
        ),
    ]


def answered(total: int) -> float:
    """Bytes per second that the aggregator's link takes where each block is only answered."""
    with broker() as running, beside(running.url):
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        packets = [(topics.up(f"pi-{i}", "load"), bytes(BLOCK)) for i in range(total // BLOCK)]
        seconds = stream(fleet, packets, lambda: answers.echoes, IN_FLIGHT_BLOCKS)
        fleet.close()
    return len(packets) * BLOCK / seconds


def carried(total: int) -> float:
    """Bytes per second that the broker takes from our connections to a subscriber that only counts."""
    with broker() as running:
        came = [0]
        answers = Answers()
        fleet = connected(running.url, answers)
        where = BrokerUrl.parse(running.url)
        ears = Fleet(
            where.host, where.port, lambda _c, _t, payload: came.__setitem__(0, came[0] + len(payload))
        )
        ears.add("ears", "load/#")
        for _ in range(20):
            ears.turn()
        payload, sent, started = bytes(BLOCK), 0, time.perf_counter()
        while came[0] < total:
            while sent < total and sent - came[0] < IN_FLIGHT_BLOCKS * BLOCK:
                connection = fleet.connections[(sent // BLOCK) % CONNECTIONS]
                connection.out += publish("load/block", payload, connection.next_mid())
                sent += BLOCK
            fleet.turn(0.0)
            ears.turn(0.001)
        seconds = time.perf_counter() - started
        fleet.close()
        ears.close()
    return total / seconds


def memory(options: argparse.Namespace) -> list[Row]:
    """A thousand updates of 1 MB, the merge included."""
    seconds, size, grown = uploads(options, MB, options.updates)
    return [
        Row(
            f"{options.updates} updates of {size / MB:.2f} MB: the aggregator grows by",
            f"{grown / MB:.1f} MB ({grown / size:.1f} models)",
            f"{seconds:.0f} s",
            "3 models",
        )
    ]
