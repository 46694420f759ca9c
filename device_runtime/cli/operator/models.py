"""`device-runtime models`: lists a run's served models, rolls back to one, or writes it as ONNX."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import datetime, timezone
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from device_runtime.aggregator.errors import AggregatorError, RunFolderError, RunInUse
from device_runtime.aggregator.storage import run_files
from device_runtime.aggregator.storage.database import has_run
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.views.console_log import number, size
from device_runtime.broker.security.audit import recorded, this_user
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.cli.options import add_format, as_json
from device_runtime.models.bundles.targets import ACCURACY, metric_text

if TYPE_CHECKING:
    from device_runtime.aggregator.storage.model_versions import Version

ERRORS = (AggregatorError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="Show the models of this run folder.")
    parser.add_argument(
        "--rollback",
        type=int,
        metavar="ROUND",
        help="Serve that round's model from now on and continue from it; an open round is discarded.",
    )
    add_format(parser)
    parser.add_argument(
        "--export-onnx", type=Path, metavar="FILE", help="Write the served model as one ONNX file."
    )


def run(options: argparse.Namespace) -> int:
    """Raises RunFolderError for a folder without a run, RollbackError for a model that is not kept."""
    from device_runtime.aggregator.storage.model_versions import versions_in

    folder: Path = options.run_dir
    if not has_run(folder):
        raise RunFolderError(f"{folder} is no run folder: nothing was begun there")
    if options.rollback is not None:
        with recorded(folder, this_user(), "rollback", f"round {options.rollback}"):
            text = _roll_back(folder, options.rollback)
        print(text)
        return 0
    if options.export_onnx is not None:
        print(_exported(folder, options.export_onnx))
        return 0
    versions = versions_in(folder)
    print(as_json(versions) if options.format == "json" else table(versions))
    return 0


def table(versions: tuple[Version, ...]) -> str:
    """A line for each model, the latest last."""
    evaluated = [version for version in versions if not isnan(version.eval_acc)][-1:]
    metric = evaluated[0].metric if evaluated else ACCURACY
    more = tuple(evaluated[0].metrics) if evaluated else ()
    rows = [
        [
            "->" if version.served else "",
            version.round,
            "-" if isnan(version.published_s) else _time(version.published_s),
            metric_text(version.metric, version.eval_acc),
            *(f"{version.metrics.get(name, nan):.4g}" for name in more),
            number(version.eval_loss),
            version.sha256[:12],
            size(version.size) if version.kept else "not kept",
            version.note,
        ]
        for version in versions
    ]
    headers = ["", "round", "since", metric, *more, "loss", "sha256", "size", "note"]
    return tabulate(rows, headers, disable_numparse=True)


def _exported(folder: Path, file: Path) -> str:
    from device_runtime.aggregator.storage.model_versions import served_onnx

    version, data = served_onnx(folder)
    try:
        replace_file(file, data, mode=0o666)
    except OSError as error:
        raise RunFolderError(f"cannot write {file}: {error.strerror or error}") from None
    text = f", {version.metric} {metric_text(version.metric, version.eval_acc)}"
    accuracy = "" if isnan(version.eval_acc) else text
    return f"{file}: the model of round {version.round}{accuracy}, {size(len(data))}"


def _roll_back(folder: Path, to: int) -> str:
    """Go back at once, or ask the aggregator that has the folder to. Returns a line about it."""
    from device_runtime.aggregator.storage.model_versions import check_rollback

    check_rollback(folder, to)
    try:
        done = _roll_back_here(folder, to)
    except RunInUse:
        run_files.request_rollback(folder, to)
        return f"asked the aggregator that runs in {folder} to roll back to the model of round {to}"
    more = "its rounds are over" if done else "the next round goes on from it"
    return f"{folder} serves the model of round {to}; {more}"


def _roll_back_here(folder: Path, to: int) -> bool:
    """Go back in this process, and return whether all rounds are over.

    Raises RunInUse if an aggregator has the folder.
    """
    from device_runtime.aggregator.rounds.run import OpenRun
    from device_runtime.aggregator.storage.store import Store

    with closing(Store(folder)) as store:
        identity = store.identity()
    if identity is None:
        raise RunFolderError(f"{folder} belongs to no run yet")
    rounds = OpenRun(tasks.decode(identity.task), folder)
    with closing(rounds.store):
        rounds.go_back(to)
        return rounds.store.rounds.latest_closed() >= rounds.task.rounds


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
