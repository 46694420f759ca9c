"""`device-runtime serve`: runs the aggregator of one or several tasks, until done or stopped."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from device_runtime.aggregator.configuration import config, logs
from device_runtime.aggregator.configuration.config import ServerConfig
from device_runtime.aggregator.configuration.exit_codes import exit_code
from device_runtime.aggregator.errors import AggregatorError, ConfigError, TaskError
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.kind_settings import kinds_named
from device_runtime.aggregator.tasks.shared_settings import SharedSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.url import PASSWORD_VARIABLE
from device_runtime.cli.options import add_plugins, listed, load_plugins
from device_runtime.cli.setting_options import add_settings, option_values
from device_runtime.service_process import Exit
from device_runtime.strategies.kinds import registry

__all__ = ["ERRORS", "add_arguments", "exit_code", "run", "server_config", "task_of", "tasks_of"]

log = logging.getLogger(__name__)

ERRORS = (AggregatorError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; those of the task override the task file."""
    add = parser.add_argument
    add_plugins(parser)
    add(
        "task",
        nargs="*",
        type=Path,
        metavar="TASK.toml",
        help="Read the settings of a task, or of several, from these files; flags override them.",
    )
    task = parser.add_argument_group("settings of the task, over those of TASK.toml")
    add_settings(task, Task)
    task.add_argument(
        "--kinds",
        metavar="A,B,..",
        help="Offer these kinds of update, the preferred first (default: as `kinds` says).",
    )
    task.add_argument(
        "--system",
        metavar="NAME",
        help="Run a system by its name, with its kinds; `device-runtime systems` lists them.",
    )
    add_settings(task, SharedSettings)
    add(
        "--config",
        type=Path,
        metavar="SERVER.toml",
        help="Read broker, database, http and log from this file; flags override it.",
    )
    _add_run(parser)
    _add_broker(parser)
    _add_http(parser)
    add(
        "--log-format",
        choices=("text", "json"),
        help="Write the log with times and fields (default: bare lines).",
    )
    add("--quiet", action="store_true", help="Print only the final tables.")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--run-dir",
        type=Path,
        help="Keep the run in this folder; a run that is there goes on (default: runs/NAME).",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="Check small contributions in this many processes (default: none).",
    )
    add(
        "--max-devices",
        type=int,
        metavar="N",
        help="Know this many devices at a time, and count no more in a round (default: 100000).",
    )
    add(
        "--database",
        metavar="URL",
        help="Keep the run in postgresql://user@host/db (default: SQLite in the run folder).",
    )


def _add_broker(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--broker",
        metavar="URL",
        help="Connect to this broker, mqtts://user@host; auto starts one on this machine (default: auto).",
    )
    add(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"Read the broker's password from this file (default: from {PASSWORD_VARIABLE}).",
    )
    add(
        "--port",
        type=int,
        help="Set the port of the broker that auto starts (default: as before, or a free one).",
    )
    add(
        "--ca",
        type=Path,
        metavar="PEM",
        help="Trust this authority of the broker's certificate (default: the system's).",
    )
    add(
        "--enrolment",
        type=Path,
        metavar="DIR",
        help="Take broker, credential and key of offers from this folder of `broker init`.",
    )
    add(
        "--insecure",
        action="store_true",
        help="Allow mqtt:// over a network, in the clear; with --web HTTP, too.",
    )


def _add_http(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--http",
        metavar="HOST:PORT",
        help="Serve dashboard, REST, /metrics and /healthz at this address (default: none).",
    )
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="Ask for the token of this file over HTTP (default: made, in the run folder).",
    )
    add("--web", action="store_true", help="Offer the page by which browsers join (docs/browser.md).")
    add("--http-open", action="store_true", help="Serve HTTP without a token, on this machine only.")


def run(args: argparse.Namespace) -> int:
    """Serve until done or a signal. Raises the errors to which `exit_code` gives numbers."""
    from device_runtime.aggregator.serving.process import Process

    load_plugins(args)
    server = server_config(args)
    logs.configure(server.log)
    if args.database and urlsplit(args.database).password:
        log.warning(
            "everybody on this machine can see the password in --database: use PGPASSWORD, ~/.pgpass or "
            "[database] password_file"
        )
    Process(server, tasks_of(args, server), args.quiet).run()
    return Exit.DONE


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The server file, overridden by flags. Raises ConfigError."""
    http = {} if args.http is None else config.http_keys(args.http, "--http")
    flags: dict[str, dict[str, object]] = {
        "": {
            "tasks": [str(file) for file in args.task] or None,
            "run_dir": args.run_dir,
            "workers": args.workers,
            "max_devices": args.max_devices,
        },
        "broker": {
            "url": args.broker,
            "password_file": args.password_file,
            "port": args.port,
            "ca": args.ca,
            "insecure": args.insecure or None,
            "enrolment": args.enrolment,
        },
        "database": {"url": args.database},
        "http": {**http, "token_file": args.token_file, "open": args.http_open or None},
        "log": {"format": args.log_format},
    }
    if args.web:
        flags["web"] = {}
        flags["http"]["insecure"] = args.insecure or None
    sections = {
        section: {key: value for key, value in keys.items() if value is not None}
        for section, keys in flags.items()
    }
    return config.load(args.config, sections)


def tasks_of(args: argparse.Namespace, server: ServerConfig) -> list[Task]:
    """The task files of the server file or the command line, each overridden by flags.

    Raises TaskError, ConfigError.
    """
    if len(server.tasks) > 1 and args.name is not None:
        raise ConfigError(f"--name {args.name}: there are {len(server.tasks)} tasks, expected one to name")
    return [task_of(args, file) for file in server.tasks] or [task_of(args)]


def task_of(args: argparse.Namespace, file: Path | None = None) -> Task:
    """A task file (by default the first of the command line, if any), overridden by flags.

    Raises TaskError.
    """
    if file is None and args.task:
        file = args.task[0]
    named = None if args.kinds is None else listed(args.kinds)
    task = tasks.load(file, option_values(args, Task), named)
    if args.system:
        task = _as_system(args.system, task)
    return SharedSettings(**option_values(args, SharedSettings)).applied(task, logging.INFO)


def _as_system(name: str, task: Task) -> Task:
    """The task as a system. Raises TaskError for kinds that were asked for and are not of the system."""
    system_task = systems.task_as_system(name, task)
    used = [kind.name for kind in system_task.kinds]
    left = [kind.name for kind in task.kinds if kind.name not in used]
    usual = msgspec.structs.replace(task, kinds=kinds_named(registry.DEFAULT_KINDS)).kinds
    if left and task.kinds != usual:
        raise TaskError(
            f"system {name} has {', '.join(used)}, and not {', '.join(left)}: leave out one or the other"
        )
    return system_task
