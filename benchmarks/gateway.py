"""Devices that come through the aggregator's own address, or the broker's WebSockets: what each costs.

    .venv/bin/python benchmarks/gateway.py                          # 200 devices, three rounds, both ways
    .venv/bin/python benchmarks/gateway.py --devices 50 --kind full

Devices are connections of this process that say hello and contribute, and compute nothing; aggregator and
Mosquitto are processes of their own, whose resident memory and processor time are read: before anybody has
come, when all are there and nothing is done, and after the rounds. By `full` 310 kB go up from each device in
a round, in blocks that are asked for; by class means a few kB.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tabulate import tabulate

from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import WEB_USER, BrokerOptions, WebSockets
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Event, Received, Will
from device_runtime.broker.wire.messages import (
    INLINE_LIMIT,
    Contribution,
    Get,
    Hello,
    Metrics,
    Offer,
    Receipt,
    State,
    offer_in,
)
from device_runtime.broker.wire.transfer import answer_get
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.kinds import registry

BUNDLE = "digits-wrn-10-1"
COMMAND = "import sys; from device_runtime.cli import main; sys.exit(main(sys.argv[1:]))"
PATIENCE_S, REST_S = 300.0, 5.0
Told = tuple["Device", Event]


class Device:
    """One connection. What it hears goes to a queue that all share."""

    def __init__(self, number: int, url: BrokerUrl, events: queue.SimpleQueue[Told]) -> None:
        self.name, self._events = f"page-{number}", events
        self.round = self.counted = 0
        gone = messages.encode(State(boot=1, online=False))
        here = messages.encode(State(boot=1, online=True))
        state = topics.up(self.name, "state")
        options = LinkOptions(
            Will(state, gone, True),
            (topics.down(self.name, "#"), topics.OFFERS),
            greeting=Will(state, here, True),
        )
        self.link = Link(url, self.name, self, options)  # type: ignore[arg-type]

    def put(self, event: Event) -> None:
        self._events.put((self, event))

    def say(self, leaf: str, message: messages.Message) -> None:
        self.link.publish(topics.up(self.name, leaf), messages.encode(message))


@dataclass(frozen=True)
class Used:
    """By one process until now: resident memory, and processor time."""

    megabytes: float
    seconds: float

    @classmethod
    def of(cls, process: psutil.Process) -> Used:
        times = process.cpu_times()
        return cls(process.memory_info().rss / 1e6, times.user + times.system)


@dataclass
class Rounds:
    """Answers every offer with an update of this kind. Large ones differ: what is here is not asked for."""

    kind: str
    devices: list[Device]
    events: queue.SimpleQueue[Told]
    blobs: Blobs

    def __post_init__(self) -> None:
        model = Bundle.open(shipped_folder(BUNDLE))
        strategy, weights = registry.make(self.kind, {}).variants()[0], model.weights()
        update: dict[str, Any] = {
            spec.name: weights.get(spec.name, np.ones(spec.shape, spec.dtype)).astype(spec.dtype)
            for spec in strategy.expected(model.manifest)
        }
        body = tensors.encode(update)
        self.small = {"body": body} if len(body) <= INLINE_LIMIT else {}
        first = next(iter(update))
        self.large = {
            device.name: self.blobs.put(
                tensors.encode({**update, first: update[first] + np.float32(1e-3 * n)})
            )
            for n, device in enumerate(() if self.small else self.devices)
        }

    def until(self, done: Callable[[], bool]) -> float:
        """Turn until it is true; returns the seconds."""
        began = time.monotonic()
        while not done():
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"not in {PATIENCE_S:g} s: {sum(page.counted for page in self.devices)}")
            try:
                device, event = self.events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, Received) and event.payload:
                self._take(device, event)
        return time.monotonic() - began

    def _take(self, device: Device, event: Received) -> None:
        if topics.is_offer(event.topic):
            offer = offer_in(event.payload)
            if offer.kinds and offer.round > device.round and not offer.done:
                device.round = offer.round
                self._contribute(device, offer)
        elif event.topic.endswith("/get"):
            get = messages.decode(event.payload, Get)
            for index, data in answer_get(self.blobs, get):
                device.link.publish(topics.up(device.name, topics.block(get.blob.sha, index)), data)
        elif event.topic.endswith("/receipt"):
            receipt = messages.decode(event.payload, Receipt)
            if receipt.status != "accepted":
                raise RuntimeError(f"{device.name}: {receipt}")
            device.counted += 1

    def _contribute(self, device: Device, offer: Offer) -> None:
        where = self.small or {"blob": self.large[device.name]}
        device.say(
            "contribution",
            Contribution(
                task=offer.task,
                run=offer.run,
                round=offer.round,
                boot=1,
                seq=offer.round,
                kind=self.kind,
                num_examples=10,
                metrics=Metrics(0.5, 1500, 2000, 1024),
                **where,  # type: ignore[arg-type]
            ),
        )


def served(broker: Mosquitto, options: argparse.Namespace, folder: Path) -> tuple[Any, str]:
    """`serve --web`, and where its page is."""
    words = (
        f"serve --bundle {BUNDLE} --kinds {options.kind} --rounds {options.rounds} --deadline {PATIENCE_S:g} "
        f"--min-devices {options.devices} --broker {broker.url} --web --http 127.0.0.1:0 "
        f"--run-dir {folder / 'run'}"
    ).split()
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            stdout=out,
            stderr=out,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if match := re.search(r"browsers join at (\S+)/join/", log.read_text()):
            return process, match[1]
        time.sleep(0.1)
    raise RuntimeError(log.read_text())


def measured(way: str, options: argparse.Namespace, folder: Path) -> list[list[object]]:
    """Rows of the table, of one way: "gateway" or "broker"."""
    broker = brokers.start("mosquitto", BrokerOptions(web=WebSockets(password="web")))  # noqa: S106
    assert isinstance(broker, Mosquitto)
    process, page = served(broker, options, folder)
    processes = {"aggregator": psutil.Process(process.pid), "Mosquitto": psutil.Process(broker.pid)}
    look: Callable[[], dict[str, Used]] = lambda: {k: Used.of(watched) for k, watched in processes.items()}  # noqa: E731
    direct = str(broker.web_url).replace("://", f"://{WEB_USER}:web@")
    url = BrokerUrl.parse(page.replace("http", "ws", 1) + "/join/mqtt" if way == "gateway" else direct)
    events: queue.SimpleQueue[Told] = queue.SimpleQueue()
    devices = [Device(number, url, events) for number in range(options.devices)]
    rounds = Rounds(options.kind, devices, events, Blobs(folder / "blobs"))
    try:
        time.sleep(REST_S)
        alone = look()
        for device in devices:
            device.link.connect()
        time.sleep(REST_S)
        joined = look()
        hello = Hello(boot=1, num_examples=10, profile="page", memory_bytes=2**30, engine="none")
        for device in devices:
            device.say("hello", hello)
        seconds = rounds.until(lambda: all(client.counted >= options.rounds for client in devices))
        after = look()
    finally:
        for device in devices:
            device.link.close()
        process.terminate()
        process.wait(30)
        broker.stop()
    of_one = options.devices
    shared = partial(round, ndigits=2)
    return [
        [
            way,
            name,
            shared(alone[name].megabytes),
            shared(1e3 * (joined[name].megabytes - alone[name].megabytes) / of_one),
            shared(1e3 * (after[name].megabytes - alone[name].megabytes) / of_one),
            shared(1e3 * (joined[name].seconds - alone[name].seconds) / of_one),
            shared(1e3 * (after[name].seconds - joined[name].seconds) / of_one / options.rounds),
            shared(seconds / options.rounds),
        ]
        for name in processes
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", default="class-means", help="of what they contribute")
    options = parser.parse_args()
    rows = []
    for way in ("gateway", "broker"):
        with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
            rows += measured(way, options, Path(folder))
    headers = (
        "through",
        "process",
        "MB alone",
        "kB a connection",
        "kB after rounds",
        "ms to connect",
        "ms a round",
        "s a round",
    )
    print(
        f"{options.devices} devices, {options.rounds} rounds of {options.kind}; kB and ms are for each device"
    )
    print(tabulate(rows, headers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
