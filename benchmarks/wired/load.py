"""The load that is put on a broker, and the processes that bear it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.bare_mqtt import Connection, Fleet, publish
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import Contribution, Get, Hello, Metrics, Offer, Receipt
from device_runtime.broker.wire.url import BrokerUrl

MB = 1_000_000
SHIPPED = "digits-wrn-10-1"
CONNECTIONS = 16
IN_FLIGHT = 2000
"""Devices that have sent and wait for their receipt, at most."""
METRICS = Metrics(train_loss=0.5, train_time_ms=1500, energy_mj=2000, peak_memory_kib=1024)
SERVE = "import sys; from device_runtime.cli import main; sys.exit(main(['serve', *sys.argv[1:]]))"
PROFILED = (
    "import atexit, cProfile, pstats, sys, threading; from device_runtime.cli import main; "
    "p = cProfile.Profile(); p.enable(); c = main(['serve', *sys.argv[1:]]); p.disable(); "
    "pstats.Stats(p).sort_stats('tottime').print_stats(35); sys.exit(c)"
)


@dataclass
class Row:
    what: str
    figure: str
    beside: str = ""
    goal: str = ""


@dataclass
class Answers:
    """What the devices of a load have heard."""

    offer: Offer | None = None
    receipts: dict[str, str] = field(default_factory=dict)
    gets: deque[tuple[str, Get]] = field(default_factory=deque)
    echoes: int = 0

    def on_message(self, _connection: Connection, topic: str, payload: bytes) -> None:
        _, _, _, device, _, leaf = topic.split("/", 5)
        if leaf == "receipt":
            receipt = messages.decode(payload, Receipt)
            self.receipts[device] = (
                receipt.status if not receipt.reason else f"{receipt.status}: {receipt.reason}"
            )
        elif leaf == "task":
            self.offer = messages.offer_in(payload)
        elif leaf == "get":
            self.gets.append((device, messages.decode(payload, Get)))
        elif leaf == "echo":
            self.echoes += 1


@contextmanager
def serving(
    url: str,
    folder: Path,
    kinds: str,
    count: int,
    bundle: str = SHIPPED,
    profile: bool = False,
    workers: int = 0,
) -> Iterator[psutil.Process]:
    """The aggregator of one round that closes after `count` contributions, as a process of its own."""
    options = f"--bundle {bundle} --rounds 1 --min-contributions {count} --deadline 900 --kinds {kinds}"
    options += f" --workers {workers}"
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROFILED if profile else SERVE,
                *options.split(),
                "--broker",
                url,
                "--run-dir",
                str(folder / "run"),
            ],
            stdout=sys.stderr if profile else log,
            stderr=sys.stderr if profile else log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield psutil.Process(process.pid)
    except BaseException:
        print((folder / "serve.log").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


@contextmanager
def broker() -> Iterator[Mosquitto]:
    running = brokers.start("mosquitto")
    assert isinstance(running, Mosquitto)
    try:
        yield running
    finally:
        running.stop()


def connected(url: str, answers: Answers, count: int = CONNECTIONS) -> Fleet:
    """`count` connections; device NAME-i-k belongs to connection i and hears through it."""
    where = BrokerUrl.parse(url)
    fleet = Fleet(where.host, where.port, answers.on_message)
    for i in range(count):
        fleet.add(f"load-{i}")
    return fleet


def up(connection: Connection, device: str, leaf: str, payload: bytes) -> None:
    connection.out += publish(topics.up(device, leaf), payload, connection.next_mid())


def opened(fleet: Fleet, answers: Answers) -> Offer:
    """Says hello as one device until the round is open."""
    hello = messages.encode(Hello(boot=1, num_examples=9, profile="pi", memory_bytes=1, engine="onnx"))
    while answers.offer is None or answers.offer.round == 0:
        up(fleet.connections[0], "first", "hello", hello)
        end = time.monotonic() + 1
        while time.monotonic() < end and (answers.offer is None or answers.offer.round == 0):
            fleet.turn()
    return answers.offer


def contribution(offer: Offer, kind: str, body: bytes, **changes: object) -> bytes:
    where = {"body": body} if body else {}
    fields = {
        "task": offer.task,
        "run": offer.run,
        "round": 1,
        "boot": 1,
        "seq": 1,
        "kind": kind,
        "num_examples": 9,
    }
    return messages.encode(Contribution(**fields, metrics=METRICS, **where, **changes))  # type: ignore[arg-type]


def stream(
    fleet: Fleet, packets: list[tuple[str, bytes]], done: Callable[[], int], in_flight: int = IN_FLIGHT
) -> float:
    """Send all (topic, payload), at most `in_flight` unanswered, until `done()` counts them all. Seconds."""
    started, sent = time.perf_counter(), 0
    while (answered := done()) < len(packets):
        while sent < len(packets) and sent - answered < in_flight:
            connection = fleet.connections[sent % len(fleet.connections)]
            connection.out += publish(*packets[sent], connection.next_mid())
            sent += 1
        fleet.turn()
        if time.perf_counter() - started > 600:
            raise TimeoutError(f"{answered} of {len(packets)} were answered in 600 s")
    return time.perf_counter() - started
