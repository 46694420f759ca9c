"""`device-runtime join`: takes part in a task as a device."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from device_runtime.broker.errors import BrokerRefused
from device_runtime.broker.wire.topics import check_task
from device_runtime.cli.options import (
    DATA_HELP,
    add_connection,
    add_data,
    add_emulation,
    add_engine,
    add_meter,
    add_personal,
    add_plugins,
    add_tags,
    emulation,
    engine_settings,
    memory_bytes,
    meter,
    meter_name,
    personal_settings,
    place,
    positive,
    share_plugins,
    tags,
)
from device_runtime.device.agent.instance import JoinedDevice, WorkRules, backend_for, pause_on_signals
from device_runtime.device.connection.connecting import Connection, connect, enrol, no_trace
from device_runtime.device.errors import PolicyError
from device_runtime.device.training.settings import Settings, check_policy
from device_runtime.models.data import SampleSource
from device_runtime.models.errors import DataError
from device_runtime.service_process import Exit, stopped_by_signals
from device_runtime.strategies.kinds.names import check_kinds
from device_runtime.strategies.terms.accountant import PrivacyBudget
from device_runtime.system_errors import is_of_disk
from device_runtime.user_account import provide_temporary_folder

from . import policy_options

log = logging.getLogger(__name__)

NOTHING_FITS = 1
"""The exit code where no sample is of the task, as of `data check`."""


def exit_code(error: Exception) -> int:
    """The code of an error: that of a service whose disk is full, read-only or fails, else of a refusal."""
    return Exit.FOLDER if is_of_disk(error) else Exit.SETTINGS


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
    add_plugins(parser)
    parser.add_argument(
        "--choose",
        default="",
        metavar="POLICY",
        help="Choose among updates by this policy (default: richest).",
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        help="Join this task of several (default: whichever there is, then the next).",
    )
    add_tags(parser)
    parser.add_argument(
        "--until-done",
        action="store_true",
        help="Leave when the task is done, whatever others there are.",
    )
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
    policy_options.add_system(parser)


def run(options: argparse.Namespace) -> int:
    policy_options.configure(options, add_arguments)
    if options.enrol:
        options.enrol = _token(options.enrol)
    if options.system:
        from .service import for_system

        for_system(options)
    if "cpu_percent" in options.flag_names and not options.service:
        raise PolicyError("--cpu-percent needs --service: the system limits a service, not this process")
    if options.enrol:
        enrolment = enrol(options.enrol, options)
        options.name = enrolment.name  # another device may be enrolled on this machine too
        print(f"enrolled as {enrolment.name} at {enrolment.url}", flush=True)
        if options.data is None:
            print(_next_lines(options))
            return 0
    if options.data is None:
        raise DataError("no samples: give --data, a folder or a file of them (docs/data.md)")
    if options.cpu_percent is not None and not options.service and "INVOCATION_ID" not in os.environ:
        log.warning("cpu_percent has no effect here: the system limits a service, not this process")
    share_plugins(options)
    check_kinds(policy_options.allowed(options).kinds)
    if options.choose:
        check_policy(options.choose)
    connection = connect(options)
    with no_trace(connection.folder) as joined:
        return _join(options, connection, joined)


def _next_lines(options: argparse.Namespace) -> str:
    """What to type after an enrolment, to look at the samples and to take part."""
    own = f"--state {shlex.quote(str(options.state))}" if options.state else f"--name {options.name}"
    return (
        "look at your samples, and take part:\n"
        f"  device-runtime data check FOLDER {own}\n"
        f"  device-runtime join {own} --data FOLDER --service"
    )


def _join(options: argparse.Namespace, connection: Connection, joined: Callable[[], None]) -> int:
    """Take part until stopped, or install a service that does; `joined` is called once it has joined."""
    pause_on_signals(connection.folder)
    url = connection.url
    if options.insecure and not url.secure:
        log.warning("--insecure: passwords and updates cross the network in the clear")
    settings = _settings(options, connection)
    if options.service:
        from .service import check_samples, install

        if not check_samples(connection, settings, options.held_out):
            return NOTHING_FITS
        return install(options, add_arguments, connection, joined)
    if SampleSource.of(options.data).is_empty:
        log.info("no samples in %s yet: this device sits out until there are", options.data)
    if options.in_process:
        provide_temporary_folder(connection.folder)
    rules = WorkRules(
        backend_for(meter_name(options), options.in_process),
        policy_options.policy(options),
        policy_options.process_priority(options),
    )
    device = JoinedDevice(connection, settings, rules)
    with stopped_by_signals(device.stop, second_kills=False):
        try:
            device.run(options.until_done, joined)
        except BrokerRefused as error:
            raise BrokerRefused(f"{error}{_way_in(connection, str(error))}") from None
    return 0


def _way_in(connection: Connection, refusal: str) -> str:
    """What lets a device in that the broker refused; empty if it is not for its name or password."""
    if "user name or password" not in refusal:
        return ""
    add = f"`device-runtime device add {connection.name}"
    if connection.enrolment is not None:
        return f". Enrol it again: {add} --again` where the broker is set up, then `join --enrol -` here"
    return (
        f". Enrol the device: {add}` where the broker is set up, then `join --enrol -` here; or give the "
        "password of this user by --password-file"
    )


def _settings(options: argparse.Namespace, connection: Connection) -> Settings:
    return Settings(
        connection.name,
        place(options.data, options),
        connection.folder,
        emulation=emulation(options),
        memory_bytes=memory_bytes(options),
        engine=engine_settings(options),
        owner=_privacy_limit(options),
        aggregator=connection.key,
        task=check_task(options.task) if options.task else "",
        meter=meter(options).meter if options.in_process else None,
        personal=personal_settings(options),
        disk_bytes=policy_options.disk_bytes(options, connection.folder),
        secret=connection.secret,
        allowed=policy_options.allowed(options),
        choose=options.choose,
        tags=tags(options),
    )


def _token(argument: str) -> str:
    """The token, which "-" reads from stdin.

    Others on this machine can see a token on the command line, and it stays in the shell's history.
    """
    return sys.stdin.readline() if argument == "-" else argument


def _privacy_limit(options: argparse.Namespace) -> PrivacyBudget | None:
    """The privacy that all tasks together may spend. Raises DataError."""
    if options.privacy_epsilon is None:
        return None
    try:
        return PrivacyBudget(options.privacy_epsilon, options.privacy_delta)
    except ValueError as error:
        raise DataError(f"--privacy-epsilon, --privacy-delta: {error}") from None
