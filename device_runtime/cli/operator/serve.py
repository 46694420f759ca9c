"""`device-runtime serve`: runs the aggregator of one or several tasks, until done or stopped."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from urllib.parse import urlsplit

from device_runtime.aggregator.configuration import config, logs
from device_runtime.aggregator.configuration.config import ServerConfig
from device_runtime.aggregator.errors import AggregatorError, ConfigError, TaskError, exit_code
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.known_systems import WHOLE
from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.options import add_plugins, listed, load_plugins
from device_runtime.cli.setting_options import add_settings, option_values
from device_runtime.service_process import Exit

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
    add_settings(parser, ServerConfig)
    add(
        "--http",
        metavar="HOST:PORT",
        help="Serve dashboard, REST, /metrics and /healthz at this address (default: none).",
    )
    add("--web", action="store_true", help="Offer the page by which browsers join (docs/browser.md).")
    add("--quiet", action="store_true", help="Print only the final tables.")


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
    values = option_values(args, ServerConfig)
    if args.task:
        values["tasks"] = args.task
    if args.http is not None:
        values["http"] = config.http_keys(args.http, "--http") | values.get("http", {})
    if args.web:
        values["web"] = {}
        if args.insecure:
            values["http"] = {**values.get("http", {}), "insecure": True}
    return config.load(args.config, values)


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
    followed = ["full"] if set(used) & set(WHOLE) else []  # whose settings these kinds take over
    left = [kind.name for kind in task.kinds if kind.name not in (*used, *followed)]
    if left and task.order != "default":
        raise TaskError(
            f"system {name} has {', '.join(used)}, and not {', '.join(left)}: leave out one or the other"
        )
    return system_task
