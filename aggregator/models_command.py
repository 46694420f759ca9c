"""`device-runtime models`: the models that a run has served, and going back to one of them."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import datetime, timezone
from math import isnan
from pathlib import Path

import msgspec
from tabulate import tabulate

from . import task as tasks
from . import wishes
from .database import begun
from .errors import AggregatorError, RunFolderError, RunInUse
from .plain import number, percent, size
from .registry import Version
from .rounds import Rounds
from .store import Store
from .versions import check_rollback, versions_in

HELP = "list the models that a run has served, or go back to one of them"
EXAMPLE = "device-runtime models runs/digits --rollback 7"

ERRORS = (AggregatorError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run folder of a task")
    parser.add_argument(
        "--rollback",
        type=int,
        metavar="ROUND",
        help="serve that round's model from now on, and go on from it; an open round is given up",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Raises RunFolderError for a folder that is none, RollbackError for a model that is not kept."""
    folder: Path = options.run_dir
    if not begun(folder):
        raise RunFolderError(f"{folder} is no run folder: nothing was begun there")
    if options.rollback is not None:
        print(_gone_back(folder, options.rollback))
        return 0
    versions = versions_in(folder)
    print(_json(versions) if options.format == "json" else table(versions))
    return 0


def table(versions: tuple[Version, ...]) -> str:
    """One line each, the latest last."""
    rows = [
        [
            "->" if version.served else "",
            version.round,
            "-" if isnan(version.published_s) else _time(version.published_s),
            percent(version.eval_acc),
            number(version.eval_loss),
            version.sha256[:12],
            size(version.size) if version.kept else "not kept",
            version.note,
        ]
        for version in versions
    ]
    headers = ["", "round", "since", "accuracy", "loss", "sha256", "size", "note"]
    return tabulate(rows, headers, disable_numparse=True)


def _gone_back(folder: Path, to: int) -> str:
    """Done at once where no aggregator has the folder, and else asked of it."""
    check_rollback(folder, to)
    try:
        _go_back(folder, to)
    except RunInUse:
        wishes.ask(folder, to)
        return f"asked the aggregator that runs in {folder} to go back to the model of round {to}"
    return f"{folder} serves the model of round {to}; the next round goes on from it"


def _go_back(folder: Path, to: int) -> None:
    """Raises RunInUse where an aggregator has the folder."""
    with closing(Store(folder)) as store:
        identity = store.identity()
    if identity is None:
        raise RunFolderError(f"{folder} belongs to no run yet")
    rounds = Rounds(tasks.decode(identity.task), folder)
    with closing(rounds.store):
        rounds.go_back(to)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def _json(versions: tuple[Version, ...]) -> str:
    return msgspec.json.format(msgspec.json.encode(versions)).decode()
