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
from device_runtime.aggregator.tasks import shared_settings as training
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.kind_settings import kinds_named
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.url import PASSWORD_VARIABLE
from device_runtime.cli.options import add_plugins, listed, load_plugins
from device_runtime.service_process import Exit
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.robust.settings import RULES

__all__ = [
    "ERRORS",
    "add_arguments",
    "exit_code",
    "run",
    "server_config",
    "task_of",
    "tasks_of",
]

log = logging.getLogger(__name__)

ERRORS = (AggregatorError,)

_FLAGS = {
    "bundle": "bundle",
    "name": "name",
    "rounds": "rounds",
    "deadline": "round_deadline_s",
    "min_contributions": "min_contributions",
    "min_devices": "min_devices",
    "late": "late",
    "wait_for": "wait_for",
    "head": "head",
    "devices_per_round": "devices_per_round",
    "buffer_size": "buffer_size",
    "max_staleness": "max_staleness",
    "staleness_weight": "staleness_weight",
    "deadline_quantile": "deadline_quantile",
    "deadline_margin": "deadline_margin",
    "deadline_least": "deadline_least_s",
    "max_extensions": "max_extensions",
    "stop_after": "stop_after",
    "stop_gain": "stop_gain",
    "stop_metric": "stop_metric",
    "keep_versions": "keep_versions",
    "robust": "robust",
    "robust_trim": "robust_trim",
    "robust_clip": "robust_clip",
    "robust_clip_factor": "robust_clip_factor",
    "robust_byzantine": "robust_byzantine",
    "seed": "seed",
    "eval_data": "eval_data",
    "generic": "generic",
}
"""Flag -> field of the task file."""


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
    add("--bundle", help="Learn this bundle: a folder, a zip, or the name of a shipped one.")
    add("--name", help="Name the task (default: as its file, or 'task').")
    add("--rounds", type=int, help="Run this many rounds (default: 10).")
    add(
        "--deadline", type=float, metavar="SECONDS", help="End a round after this many seconds (default: 60)."
    )
    add(
        "--min-contributions",
        type=int,
        metavar="N",
        help="Extend a round to which fewer devices have contributed (default: 1).",
    )
    add("--min-devices", type=int, metavar="N", help="Wait with round 1 for this many devices (default: 1).")
    add(
        "--late",
        choices=("discard", "count"),
        help="Discard or count what comes after its round (default: discard).",
    )
    add(
        "--wait-for",
        choices=("auto", "all", "fast"),
        help="Close a round when all devices are done or when the fast are (default: auto, when the fast are "
        "where several kinds are offered).",
    )
    add(
        "--head",
        choices=("auto", "trained", "closed-form"),
        help="Serve this head (default: auto, in closed form where several kinds are offered).",
    )
    add(
        "--devices-per-round",
        type=int,
        metavar="N",
        help="Ask this many devices, drawn for each round (default: all).",
    )
    add(
        "--buffer-size",
        type=int,
        metavar="N",
        help="Close a round after contributions of N devices (default: wait for all).",
    )
    add(
        "--max-staleness",
        type=int,
        metavar="N",
        help="Count a contribution that is at most this many rounds late (default: 5).",
    )
    add(
        "--staleness-weight",
        type=float,
        metavar="A",
        help="Weigh what is t rounds late by (1+t)^-A (default: 0.5).",
    )
    add(
        "--kinds",
        metavar="A,B,..",
        help="Offer these kinds of update, the preferred first (default: as `kinds` says).",
    )
    add(
        "--system",
        metavar="NAME",
        help="Run a system by its name, with its kinds; `device-runtime systems` lists them.",
    )
    training.add_arguments(parser)
    add("--family", metavar="A,B,..", help="Offer these bundles of smaller models, too, the largest first.")
    add(
        "--generic",
        metavar="PATH",
        help="Generic data set: samples of no device, for kinds that train on the aggregator.",
    )
    add(
        "--eval-data",
        metavar="PATH",
        help="Evaluate on these samples, given as to join --data (default: no evaluation).",
    )
    add(
        "--deadline-quantile",
        type=float,
        metavar="Q",
        help="Learn the deadline by which this share of the devices is ready.",
    )
    add(
        "--deadline-margin",
        type=float,
        metavar="X",
        help="Multiply a learnt deadline by this (default: 1.5).",
    )
    add("--deadline-least", type=float, metavar="SECONDS", help="Learn no deadline below this (default: 1).")
    add(
        "--max-extensions",
        type=int,
        metavar="N",
        help="End after this many extensions in a row without a contribution (default: 5).",
    )
    add("--stop-after", type=int, metavar="N", help="End after N rounds without a gain (default: never).")
    add("--stop-gain", type=float, metavar="X", help="Count no more than this as no gain (default: 0).")
    add("--stop-metric", choices=("accuracy", "loss"), help="Measure gains by this (default: accuracy).")
    add(
        "--keep-versions",
        type=int,
        metavar="N",
        help="Keep this many served models, 0 for all (default: 10).",
    )
    add(
        "--codec",
        metavar="WORD",
        help="Send updates by this codec, such as delta+int8+deflate (default: as they are).",
    )
    add("--robust", choices=RULES, help="Merge so that lying devices cannot steer the model (default: none).")
    add(
        "--robust-trim",
        type=float,
        metavar="SHARE",
        help="Trim this share at either end, with trimmed-mean (default: 0.2).",
    )
    add(
        "--robust-clip",
        type=float,
        metavar="NORM",
        help="Clip at this norm, with norm-clip and value-clip (default: by --robust-clip-factor).",
    )
    add(
        "--robust-clip-factor",
        type=float,
        metavar="X",
        help="Clip at this many times the round's median, with norm-clip and value-clip (default: 1).",
    )
    add(
        "--robust-byzantine",
        type=int,
        metavar="F",
        help="Withstand this many lying devices, with krum (default: the most possible).",
    )
    add(
        "--mask-helpers",
        metavar="NAME=KEY,..",
        help="Mask updates, so that only sums of them are seen, with these mask helpers (default: in the "
        "clear).",
    )
    add(
        "--min-group",
        type=int,
        metavar="N",
        help="Open no sum of fewer devices, with --mask-helpers (default: 3).",
    )
    add("--seed", type=int, help="Draw by this seed (default: 0).")
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
    add(
        "--config",
        type=Path,
        metavar="SERVER.toml",
        help="Read broker, database, http and log from this file; flags override it.",
    )
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
    add(
        "--log-format",
        choices=("text", "json"),
        help="Write the log with times and fields (default: bare lines).",
    )
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
    fields = {field: getattr(args, flag) for flag, field in _FLAGS.items()}
    flags = {field: value for field, value in fields.items() if value is not None}
    if args.family is not None:
        flags["family"] = listed(args.family)
    if masks := _masks(args):
        flags["masks"] = masks
    task = tasks.load(file, flags, None if args.kinds is None else listed(args.kinds))
    if args.system:
        task = _as_system(args.system, task)
    shared = training.SharedSettings(lr=args.lr, epochs=args.epochs, batch=args.batch, codec=args.codec)
    return shared.applied(task, logging.INFO)


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


def _masks(args: argparse.Namespace) -> dict[str, object]:
    """The table `masks` that flags give; empty for none."""
    masks: dict[str, object] = {}
    if args.mask_helpers is not None:
        masks["helpers"] = listed(args.mask_helpers)
    if args.min_group is not None:
        masks["min_group"] = args.min_group
    return masks
