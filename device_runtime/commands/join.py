"""`device-runtime join`: take part in a task."""

from __future__ import annotations

import argparse
import logging
import platform
import secrets
import signal
import threading
import time
from pathlib import Path

import platformdirs

from broker.link import Link, LinkOptions
from broker.topics import check_device
from broker.url import TLS, BrokerUrl
from device_runtime import data as local_data
from device_runtime.agent import Agent
from device_runtime.errors import DataError
from device_runtime.task import Settings
from strategies.accountant import Limit

from .options import add_engine, add_pretence, engine_wish, memory_bytes, positive, pretence

HELP = "Join a task as a device: measure, choose, train, send."
EXAMPLE = "device-runtime join mqtt://127.0.0.1:1883 --data samples/ --name kitchen-pi"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "broker", help="mqtts://user:password@host or, on this machine, mqtt://127.0.0.1:PORT"
    )
    parser.add_argument(
        "--data", type=Path, required=True, help=".npz file with x and y, or a folder of them"
    )
    parser.add_argument(
        "--name", help="this device's name (default: the user of the URL, or the host's name)"
    )
    parser.add_argument("--state", type=Path, help="folder for the outbox, bundles and measurements")
    parser.add_argument("--until-done", action="store_true", help="leave when the task is done")
    parser.add_argument("--ca", type=Path, help="certificate authority of the broker (PEM)")
    parser.add_argument("--cert", type=Path, help="this device's certificate (PEM)")
    parser.add_argument("--key", type=Path, help="this device's private key (PEM)")
    parser.add_argument(
        "--privacy-epsilon", type=positive, metavar="E", help="send nothing that could spend more privacy"
    )
    parser.add_argument(
        "--privacy-delta", type=positive, default=1e-3, metavar="D", help="at which (default: 0.001)"
    )
    parser.add_argument("--insecure", action="store_true", help="allow mqtt:// without TLS over a network")
    add_engine(parser)
    add_pretence(parser)


def run(options: argparse.Namespace) -> int:
    url = BrokerUrl.parse(options.broker, TLS(options.ca, options.cert, options.key), options.insecure)
    if options.insecure and not url.secure:
        logging.warning("--insecure: passwords and updates cross the network in the clear")
    local_data.check_path(options.data)
    settings = _settings(options, url)
    agent = Agent(settings, boot=secrets.randbits(32), clock=time.monotonic)
    wishes = LinkOptions(agent.will(), agent.subscriptions(), greeting=agent.greeting())
    link = Link(url, settings.name, agent.inbox, wishes)
    stop = threading.Event()

    def leave(*_: object) -> None:
        stop.set()
        agent.inbox.wake()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    link.connect()
    try:
        agent.run(link, stop, until_done=options.until_done)
    finally:
        link.close(agent.will())
    return 0


def _settings(options: argparse.Namespace, url: BrokerUrl) -> Settings:
    host = platform.node().split(".")[0]
    name = check_device(options.name or url.user or host or "device")
    folder = options.state or Path(platformdirs.user_state_dir("device-runtime")) / name
    folder.mkdir(parents=True, exist_ok=True)
    return Settings(
        name,
        options.data,
        folder,
        pretence(options),
        memory_bytes(options),
        engine_wish(options),
        _owner(options),
    )


def _owner(options: argparse.Namespace) -> Limit | None:
    """What may be spent of the samples' privacy, in all tasks together. Raises DataError."""
    if options.privacy_epsilon is None:
        return None
    try:
        return Limit(options.privacy_epsilon, options.privacy_delta)
    except ValueError as error:
        raise DataError(f"--privacy-epsilon, --privacy-delta: {error}") from None
