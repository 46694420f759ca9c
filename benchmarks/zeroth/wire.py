"""What rounds of scalars alone take on the wire: every byte of MQTT that goes to and from each device.

    .venv/bin/python benchmarks/zeroth_order.py bytes                  # 1,000 rounds, several minutes
    .venv/bin/python benchmarks/zeroth_order.py bytes --rounds 100     # a look
    .venv/bin/python benchmarks/zeroth_order.py bytes --signed         # enrolled: rounds and devices sign

The real aggregator and real devices behind a real Mosquitto, on handwritten digits. Two devices are there
throughout, one is cut off for a fifth of the rounds, one comes new at 0.7 of them; each speaks through a
meter that weighs every packet (acknowledgements, pings and the connection itself too; not what TCP and TLS
add). The bundle is the shipped one, which every installation has. Then `--steps` steps are replayed.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tabulate import tabulate

from benchmarks.zeroth.metered import Meter
from device_runtime.aggregator.machine.ports import EnrolledDevices, Ports
from device_runtime.aggregator.machine.run_events import RoundClosed, RunEvent
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.security.signing import DeviceSigner, Signer, verify_message
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire import step_log as log
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.messages import Step, encode
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.device.agent.agent import Agent
from device_runtime.device.training.settings import Settings
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.bundle import shipped_folder as shipped_at
from device_runtime.simulation import digits
from device_runtime.strategies.directions.directions import GENERATOR
from device_runtime.strategies.directions.replaying import replay

BUNDLE = "digits-wrn-10-1"
THERE, AWAY, LATE = ("pi-0", "pi-1"), "pi-2", "pi-3"
GONE, BACK, JOINS = 0.3, 0.5, 0.7
"""When one is cut off and back again, and when one comes new, in parts of the rounds."""


KEYS = {name: bytes([number]) * 32 for number, name in enumerate((*THERE, AWAY, LATE))}
"""Of each device, its own."""


class Enrolled(EnrolledDevices):
    """All of them, by their keys."""

    def __init__(self) -> None:
        self._public = {name: DeviceSigner(secret).public for name, secret in KEYS.items()}

    def knows(self, device: str) -> bool:
        return device in self._public

    def signs(self, device: str) -> bool:
        return True

    def verified_payload(self, device: str, topic: str, payload: bytes) -> bytes:
        return verify_message(self._public[device], topic, payload)


@dataclass
class Device:
    """A device in a thread, its link through a meter."""

    name: str
    meter: Meter
    stop: threading.Event
    thread: threading.Thread | None = None

    def join(self, data: Path, folder: Path, key: bytes) -> None:
        secret = KEYS[self.name] if key else b""
        settings = Settings(self.name, data, folder, aggregator=key, secret=secret)
        agent = Agent(settings, secrets.randbits(32), time.monotonic)
        options = LinkOptions(agent.will(), agent.subscriptions(), 60, (0.2, 1.0), greeting=agent.greeting())
        link = Link(BrokerUrl.parse(f"mqtt://127.0.0.1:{self.meter.port}"), self.name, agent.inbox, options)
        link.connect()

        def work() -> None:
            agent.run(link, self.stop, until_done=True)
            link.close(agent.farewell())

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()


class Course:
    """Who is there in which round, as the aggregator goes on."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.round = rounds, 0
        self.change = threading.Condition()

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, RoundClosed):
            with self.change:
                self.round = event.record.round
                self.change.notify_all()

    def wait(self, share: float) -> None:
        with self.change:
            self.change.wait_for(lambda: self.round >= share * self.rounds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=8, help="of each device")
    parser.add_argument("--steps", type=int, default=5000, help="to replay")
    parser.add_argument(
        "--signed",
        action="store_true",
        help="devices are enrolled: rounds are signed, and so is what they say",
    )


def run(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        course, devices, seconds = rounds(args, Path(folder), stack)
        report(course.rounds, devices)
        print(f"{course.rounds} rounds in {seconds:.0f} s")
    replaying(args.steps)


def rounds(args: argparse.Namespace, folder: Path, stack: ExitStack) -> tuple[Course, list[Device], float]:
    split = digits.load(np.random.default_rng(0))
    broker = brokers.start("mosquitto", BrokerOptions())
    stack.callback(broker.stop)
    url, course = BrokerUrl.parse(broker.url), Course(args.rounds)
    signer = Signer(secrets.token_bytes(32))
    devices = {name: Device(name, Meter(url.port), threading.Event()) for name in (*THERE, AWAY, LATE)}
    stop = threading.Event()
    serving = threading.Thread(
        target=serve, args=(url, folder / "run", course, stop, args, signer), daemon=True
    )

    def join(number: int, name: str) -> None:
        data = folder / f"{name}.npz"
        rows = slice(number * args.samples, (number + 1) * args.samples)
        np.savez(data, x=split.train.x[rows], y=split.train.y[rows])
        devices[name].join(data, folder / name, signer.public if args.signed else b"")

    began = time.monotonic()
    serving.start()
    for number, name in enumerate((*THERE, AWAY)):
        join(number, name)
    course.wait(GONE)
    devices[AWAY].meter.cut()
    course.wait(BACK)
    devices[AWAY].meter.mend()
    course.wait(JOINS)
    join(3, LATE)
    serving.join()
    for device in devices.values():
        if device.thread is not None:
            device.thread.join(60)
        device.meter.close()
    return course, list(devices.values()), time.monotonic() - began


def serve(
    url: BrokerUrl,
    folder: Path,
    course: Course,
    stop: threading.Event,
    args: argparse.Namespace,
    signer: Signer,
) -> None:
    """All rounds, as `device-runtime serve` does."""
    import queue

    task = Task(
        name="digits",
        bundle=BUNDLE,
        rounds=args.rounds,
        round_deadline_s=60.0,
        min_devices=len(THERE) + 1,
        kinds=(KindSettings(name="zeroth-order"),),
    )
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    link = Link(
        url, "aggregator", inbox, LinkOptions(subscriptions=(topics.FROM_DEVICES,), queue_limit=65536)
    )
    seals = (
        (lambda topic, offer: signer.seal(topic, offer, int(time.time())), signer.agree)
        if args.signed
        else (lambda _topic, offer: encode(offer), None)
    )
    devices = Enrolled() if args.signed else None
    service = Service(
        task, folder, Ports(link, inbox, (course,), seal=seals[0], agree=seals[1], devices=devices)
    )
    link.connect()
    service.run(stop)
    link.close(service.withdrawal())
    service.close()


def report(count: int, devices: list[Device]) -> None:
    names = sorted({name for device in devices for name in device.meter.bytes})
    rows = [(name, *(device.meter.bytes[name] or "" for device in devices)) for name in names]
    rows.append(("all", *(device.meter.total for device in devices)))
    print(tabulate(rows, ("bytes", *(device.name for device in devices))))
    for device in devices[: len(THERE)]:
        each = sum(
            size for name, size in device.meter.bytes.items() if name.startswith(("next", "short", "PUBACK"))
        )
        print(
            f"{device.name}: {each / count:.1f} bytes a round, {device.meter.total / count:.1f} with all else"
        )


def replaying(count: int) -> None:
    bundle = Bundle.open(shipped_at(BUNDLE))
    scalars = np.random.default_rng(0).normal(scale=0.1, size=(count, 2)).astype(np.float32)
    line = [
        Step(n, GENERATOR, log.round_seed(0, n), "all", 1e-2, 1.0, tuple(map(float, pair)))
        for n, pair in enumerate(scalars, 1)
    ]
    blobs = [log.encode(line[begin : begin + log.SEGMENT], 0) for begin in range(0, count, log.SEGMENT)]
    began = time.perf_counter()
    replay(bundle.weights(), [step for data in blobs for step in log.decode(data)], bundle.manifest)
    seconds = time.perf_counter() - began
    print(f"{count} steps are {sum(map(len, blobs)) / 1e3:.1f} kB of log, replayed in {seconds:.1f} s")
