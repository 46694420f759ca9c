"""`device-runtime broker`: runs a broker until Ctrl-C; `broker init` sets one up for production."""

from __future__ import annotations

import argparse
import secrets
import threading
from pathlib import Path

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.servers.brokers import CHOICES, start
from device_runtime.broker.servers.server import WEB_USER, BrokerOptions, RunningBroker, WebSockets
from device_runtime.cli.operator import broker_setup
from device_runtime.service_process import sleep_until, stopped_by_signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=1883, help="Listen on this TCP port; 0 takes a free one (default: 1883)."
    )
    parser.add_argument(
        "--kind",
        choices=CHOICES,
        default="auto",
        help="Run this program; auto takes mosquitto where it is installed, else amqtt (default: auto).",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="Keep retained messages in this folder over restarts (mosquitto only).",
    )
    parser.add_argument(
        "--websockets",
        type=int,
        metavar="PORT",
        help="Listen for WebSockets, too, for pages and Node; 0 takes a free port (default: do not).",
    )
    broker_setup.add_actions(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises BrokerError."""
    if args.action:
        return broker_setup.run(args)
    web = None if args.websockets is None else WebSockets(args.websockets, secrets.token_urlsafe(24))
    options = BrokerOptions(args.port, folder=args.folder, persistence=args.folder is not None, web=web)
    broker = start(args.kind, options)
    ended = threading.Event()
    with stopped_by_signals(ended.set):
        _watch(broker, web, ended)
    return 0


def _watch(broker: RunningBroker, web: WebSockets | None, ended: threading.Event) -> None:
    """Print where the broker is, and wait until it is to end. Raises BrokerError if it ends by itself."""
    print(f"{broker.name} at {broker.url} ({broker.why})", flush=True)
    if web:
        print(f"over WebSockets: {broker.web_url.replace('//', f'//{WEB_USER}:{web.password}@')}", flush=True)
    while not sleep_until(ended, 1.0):
        if not broker.alive:
            raise BrokerError(f"{broker.name} ended by itself: start it again")
    broker.stop()
