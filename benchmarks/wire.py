"""What the wire carries: the real aggregator behind Mosquitto, against the bare broker in the same run.

    .venv/bin/python benchmarks/wire.py                       # all, about 5 minutes
    .venv/bin/python benchmarks/wire.py small --count 20000   # one of: small, chunks, memory, idle
    .venv/bin/python benchmarks/wire.py small --profile       # where the aggregator's time goes

small   170-byte contributions of as many devices, from their first byte to the receipt of the last: each is
        committed to SQLite (synchronous=FULL) before its receipt. Beside it the same bytes through the
        broker alone, to a subscriber that answers each and keeps nothing.
chunks  contributions of several MB, pulled block by block, verified, synced; beside it the same bytes
        published in one go, to a subscriber that only counts.
memory  contributions of 1 MB: by how much the aggregator's resident memory grows.
idle    devices that are connected and say nothing: what they cost the broker and the aggregator, and how
        long a contribution takes among them.

The load is made by hand (bare_mqtt.py) in this process; the broker and the aggregator have their own.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # beside this lies simulation.py, which is not the package

import numpy as np
import psutil
from tabulate import tabulate

from benchmarks.bare_mqtt import Connection, Fleet, publish
from broker import brokers, messages, topics
from broker.blobs import BLOCK, name
from broker.link import Link, LinkOptions, Received
from broker.messages import Contribution, Get, Hello, Metrics, Offer, Receipt, State
from broker.mosquitto import Mosquitto
from broker.url import BrokerUrl
from models import tensors
from models.bundle import Bundle

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

    def heard(self, _connection: Connection, topic: str, payload: bytes) -> None:
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


def connected(url: str, answers: Answers, count: int = CONNECTIONS) -> Fleet:
    """`count` connections; device NAME-i-k belongs to connection i and hears through it."""
    where = BrokerUrl.parse(url)
    fleet = Fleet(where.host, where.port, answers.heard)
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


def small(options: argparse.Namespace) -> list[Row]:
    """Small contributions per second, each committed before its receipt."""
    body = tensors.encode({"g": np.array([0.5, -0.25], np.float32)})
    count = options.count
    with broker() as running, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        how = {"profile": options.profile, "workers": options.workers}
        with serving(running.url, Path(folder), "zeroth-order", count, **how) as process:
            message = contribution(opened(fleet, answers), "zeroth-order", body)
            packets = [(topics.up(f"pi-{i}", "contribution"), message) for i in range(count)]
            before = process.cpu_times()
            seconds = stream(fleet, packets, lambda: len(answers.receipts))
            spent = process.cpu_times()
            fleet.close()
        wrong = {status for status in answers.receipts.values() if status != "accepted"}
        with sqlite3.connect(Path(folder) / "run" / "run.sqlite") as db:
            rows = db.execute("SELECT count(*), count(DISTINCT device) FROM contributions").fetchone()
        if wrong or rows != (count, count):
            raise AssertionError(f"{rows} rows of {count} contributions, refusals: {list(wrong)[:3]}")
    bare = echoed(message, count)
    cpu = (spent.user + spent.system - before.user - before.system) / count
    size = len(publish(packets[0][0], message, 1))
    return [
        Row(
            f"small contributions ({size} B) committed and receipted",
            f"{count / seconds:,.0f}/s",
            f"{bare:,.0f}/s answered by a subscriber that keeps nothing",
            "3,000/s",
        ),
        Row("the aggregator's processor time for one", f"{1e6 * cpu:.0f} µs"),
    ]


def echoed(message: bytes, count: int) -> float:
    """The same bytes to a paho subscriber that only answers; per second."""
    with broker() as running:
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        ready = multiprocessing.Event()
        echo = multiprocessing.Process(target=_echo, args=(running.url, ready), daemon=True)
        echo.start()
        ready.wait(20)
        packets = [(topics.up(f"pi-{i}", "contribution"), message) for i in range(count)]
        seconds = stream(fleet, packets, lambda: answers.echoes)
        echo.terminate()
        echo.join()
        fleet.close()
    return count / seconds


def _echo(url: str, ready: multiprocessing.synchronize.Event) -> None:
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    link = Link(
        BrokerUrl.parse(url),
        "echo",
        inbox,
        LinkOptions(subscriptions=(topics.FROM_DEVICES,), queue_limit=65536),
    )
    link.connect()
    ready.set()
    while True:
        event = inbox.get()
        if isinstance(event, Received):
            link.publish(f"fl/v1/d/{event.topic.split('/')[3]}/dn/echo", bytes(8))


@contextmanager
def broker() -> Iterator[Mosquitto]:
    running = brokers.start("mosquitto")
    assert isinstance(running, Mosquitto)
    try:
        yield running
    finally:
        running.stop()


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
                (topics.up(f"pi-{number}", "contribution"), contribution(offer, "full", b"", blob=name(one)))
                for number, one in enumerate(bodies)
            ]
            senders = Senders(fleet, answers, {name(one).sha: one for one in bodies})
            senders.send(announcements[:8], 8)  # what is loaded once is loaded
            before, watch = process.memory_info().rss, _Watch(process)
            seconds = senders.send(announcements[8:], 16)
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
    rate = (options.uploads - 8) * size / seconds / MB
    bare = carried(options.uploads * size) / MB
    return [
        Row(
            f"uploads of {size / MB:.1f} MB in blocks, verified and on disk",
            f"{rate:.0f} MB/s",
            f"{bare:.0f} MB/s in messages of 64 KiB to a subscriber that only counts",
            f"60%: it is {100 * rate / bare:.0f}%",
        )
    ]


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
            while sent < total and sent - came[0] < 8 * 8 * BLOCK:
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


def idle(options: argparse.Namespace) -> list[Row]:
    """Connected devices that say nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    body = tensors.encode({"g": np.array([0.5, -0.25], np.float32)})
    count = options.idle
    with broker() as running, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        with serving(running.url, Path(folder), "zeroth-order", count + 1) as process:
            offer = opened(fleet, answers)
            mosquitto = psutil.Process(running.pid)
            before = (mosquitto.memory_info().rss, process.memory_info().rss)
            started, first = time.perf_counter(), len(fleet.connections)
            state = messages.encode(State(boot=1, online=True))
            for number in range(count):
                device = f"idle-{number}"
                connection = fleet.add(device, topics.down(device, "#"))
                up(connection, device, "state", state)
                fleet.turn(0.0)
            fleet.until(lambda: fleet.acknowledged >= count, 120, f"{count} devices to connect")
            seconds = time.perf_counter() - started
            time.sleep(2)
            cost = (mosquitto.memory_info().rss - before[0], process.memory_info().rss - before[1])
            cpu = process.cpu_times()
            time.sleep(5)
            later = process.cpu_times()
            begun = time.perf_counter()
            up(fleet.connections[first], "idle-0", "contribution", contribution(offer, "zeroth-order", body))
            fleet.until(lambda: "idle-0" in answers.receipts, 60, "a receipt among the idle")
            waited = time.perf_counter() - begun
            fleet.close()
    busy = (later.user + later.system - cpu.user - cpu.system) / 5
    return [
        Row(f"{count} idle devices connect", f"{seconds:.1f} s"),
        Row(
            "memory for each, broker and aggregator",
            f"{cost[0] / count / 1e3:.1f} and {cost[1] / count / 1e3:.1f} kB",
        ),
        Row("the aggregator's processor among them", f"{100 * busy:.1f}%"),
        Row("a contribution among them is receipted after", f"{1e3 * waited:.0f} ms"),
    ]


PARTS = {"small": small, "chunks": chunks, "memory": memory, "idle": idle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help="small, chunks, memory, idle (default: all)")
    add("--count", type=int, default=20_000, help="small contributions (default: 20000)")
    add("--uploads", type=int, default=50, help="uploads in blocks (default: 50)")
    add("--updates", type=int, default=1000, help="updates of 1 MB (default: 1000)")
    add("--idle", type=int, default=2000, help="idle devices (default: 2000)")
    add("--workers", type=int, default=0, help="of the aggregator, under small contributions (default: 0)")
    add("--profile", action="store_true", help="profile the aggregator under small contributions")
    add("--folder", type=Path, help="where the run folders are (default: the system's temporary)")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    for part in options.parts or PARTS:
        print(f"{part} ...", file=sys.stderr, flush=True)
        rows += PARTS[part](options)
    print(
        tabulate([(r.what, r.figure, r.beside, r.goal) for r in rows], ("", "measured", "beside it", "goal"))
    )


if __name__ == "__main__":
    main()
