"""`device-runtime join`: takes part in a task as a device."""

from __future__ import annotations

import argparse
import logging
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.topics import check_task
from device_runtime.cli.options import (
    DATA_HELP,
    add_connection,
    add_data,
    add_emulation,
    add_engine,
    add_meter,
    add_personal,
    emulation,
    engine_settings,
    memory_bytes,
    meter,
    meter_name,
    personal_settings,
    place,
    positive,
)
from device_runtime.client.agent import Agent
from device_runtime.client.backend.base import MakeBackend
from device_runtime.client.backend.subprocess import STAYS_S, Subprocess
from device_runtime.client.connection.connecting import Connection, connect, enrol, first_connection, no_trace
from device_runtime.client.connection.other_tasks import warn_if_absent
from device_runtime.client.duty import in_this_process
from device_runtime.client.energy import needs_listening
from device_runtime.client.service.instance_lock import pause_on_signals, running_as_device
from device_runtime.client.settings import Settings
from device_runtime.models.errors import DataError
from device_runtime.strategies.terms.accountant import PrivacyBudget

from . import policy_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection(parser, "broker")
    parser.add_argument(
        "--enrol",
        metavar="TOKEN",
        help="Enrol with this token of `device add`, and keep it; '-' reads it from stdin.",
    )
    parser.add_argument("--data", type=Path, metavar="PATH", help=DATA_HELP)
    add_data(parser)
    add_personal(parser)
    parser.add_argument(
        "--task",
        metavar="NAME",
        help="Join this task of several (default: whichever there is, then the next).",
    )
    parser.add_argument("--until-done", action="store_true", help="Leave when the task is done.")
    parser.add_argument(
        "--privacy-epsilon",
        type=positive,
        metavar="E",
        help="Send nothing that could spend more privacy than this epsilon.",
    )
    parser.add_argument(
        "--privacy-delta",
        type=positive,
        default=1e-3,
        metavar="D",
        help="Count privacy at this delta (default: 0.001).",
    )
    add_engine(parser)
    add_meter(parser)
    add_emulation(parser)
    parser.add_argument(
        "--in-process", action="store_true", help="Work in this process, not in one that ends when idle."
    )
    policy_options.add_policy(parser)
    policy_options.add_service(parser)


def run(options: argparse.Namespace) -> int:
    policy_options.configure(options, add_arguments)
    if options.enrol:
        enrolment = enrol(_token(options.enrol), options)
        options.name = enrolment.name  # another device may be enrolled on this machine too
        print(f"enrolled as {enrolment.name} at {enrolment.url}", flush=True)
        if options.data is None:
            return 0
    if options.data is None:
        raise DataError("no samples: give --data, a folder or a file of them (docs/data-on-device.md)")
    connection = connect(options)
    with no_trace(connection.folder) as joined:
        return _join(options, connection, joined)


def _join(options: argparse.Namespace, connection: Connection, joined: Callable[[], None]) -> int:
    """Take part until stopped, or install a service that does; `joined` is called once it has joined."""
    pause_on_signals(connection.folder)
    url = connection.url
    if options.insecure and not url.secure:
        logging.warning("--insecure: passwords and updates cross the network in the clear")
    settings = _settings(options, connection)
    if options.service:
        from .service import install

        code = install(options, add_arguments, connection)
        joined()
        return code
    agent = Agent(settings, secrets.randbits(32), time.monotonic, _backend(options))
    link_options = LinkOptions(agent.will(), agent.subscriptions(), greeting=agent.greeting())
    link = Link(url, connection.client_id, agent.inbox, link_options)
    stop = threading.Event()

    def leave(*_: object) -> None:
        stop.set()
        agent.inbox.wake()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    with running_as_device(
        agent, link, policy_options.policy(options), policy_options.process_priority(options)
    ):
        agent.warm_up()
        try:
            if first_connection(link, stop, waits=agent.close):
                joined()
                if settings.task:
                    warn_if_absent(connection, settings.task, lambda: agent.heard, stop)
                agent.run(link, stop, until_done=options.until_done)
        finally:
            agent.close()
            link.close(agent.farewell())
    return 0


def _backend(options: argparse.Namespace) -> MakeBackend:
    """The backend that works: this process, or a process of its own. Raises MeterError.

    A process of its own ends when idle, unless the meter must be read all the time.
    """
    if options.in_process:
        return in_this_process
    name = meter_name(options)
    return partial(Subprocess, meter=name, stays_s=inf if needs_listening(name) else STAYS_S)


def _settings(options: argparse.Namespace, connection: Connection) -> Settings:
    return Settings(
        connection.name,
        place(options.data, options),
        connection.folder,
        emulation(options),
        memory_bytes(options),
        engine_settings(options),
        _privacy_limit(options),
        connection.key,
        check_task(options.task) if options.task else "",
        meter(options).meter if options.in_process else None,
        personal_settings(options),
        policy_options.disk_bytes(options, connection.folder),
        connection.secret,
        policy_options.allowed(options),
    )


def _token(given: str) -> str:
    """The token, which "-" reads from stdin.

    Others on this machine can see a token on the command line, and it stays in the shell's history.
    """
    return sys.stdin.readline() if given == "-" else given


def _privacy_limit(options: argparse.Namespace) -> PrivacyBudget | None:
    """The privacy that all tasks together may spend. Raises DataError."""
    if options.privacy_epsilon is None:
        return None
    try:
        return PrivacyBudget(options.privacy_epsilon, options.privacy_delta)
    except ValueError as error:
        raise DataError(f"--privacy-epsilon, --privacy-delta: {error}") from None
