"""`device-runtime compare`: tables of the papers, run here; or runs that are there, side by side."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.profiles.machine import usable_cores
from device_runtime.simulation.compare.performing import of_policy
from device_runtime.simulation.compare.plan import check
from device_runtime.simulation.compare.progress import Bars, Lines, Tick, View, Working
from device_runtime.simulation.compare.run_folder import Name
from device_runtime.simulation.compare.running import Children, Job, interruptible, occupied, run_jobs
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.executors.choice import ExecutorWish
from device_runtime.simulation.papers import catalogue, page, rendering, resolving
from device_runtime.simulation.papers.listing import listing
from device_runtime.simulation.papers.outcome import Outcome, read
from device_runtime.simulation.papers.places import ENV, data_folder
from device_runtime.simulation.papers.runs import Cell, Wanted, cells, jobs, plans
from device_runtime.simulation.papers.shared import shared
from device_runtime.simulation.papers.table import SCALES
from device_runtime.simulation.report.write import side_by_side

from .options import count

ERRORS = (SimulationError, AggregatorError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        metavar="TABLE|RUN_DIR",
        help="Run a table, such as paper:002-t4.3, or compare folders of runs (default: list the tables).",
    )
    add(
        "--scale",
        choices=SCALES,
        default="cpu",
        help="Run at this scale: smoke for a minute, cpu for two cores, full as the paper (default: cpu).",
    )
    add("--seeds", type=count, metavar="N", help="Run with seeds 0 to N-1 (default: the table's).")
    add(
        "--parallel",
        type=count,
        metavar="N",
        help="Do this many runs at a time (default: as many as usable cores).",
    )
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help=f"Read data from this folder (default: ${ENV}, or ../shared/data).",
    )
    add("--run-dir", type=Path, help="Keep the runs in this folder; what is finished there is not run again.")
    add(
        "--device",
        default="cpu",
        metavar="PLACE",
        help="Train on cpu or, with torch, on cuda (default: cpu).",
    )
    add("--write", type=Path, metavar="FILE.md", help="Put the table into its section of this page.")
    add("--format", choices=("text", "json"), default="text", help="Print as text or JSON (default: text).")


def run(options: argparse.Namespace) -> int:
    """Raises SimulationError, ModelError; of runs that fail, after what the others came to."""
    tables = [name for name in options.what if name.startswith(("paper:", "ours:"))]
    if not options.what:
        print(listing(data_folder(options.data_dir, os.environ), shared()))
        return 0
    if not tables:
        found = side_by_side([Path(name) for name in options.what])
        wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(found.json() if options.format == "json" else found.text(wide))
        return 0
    if len(options.what) > 1:
        raise ScenarioError(f"{tables[0]} beside {len(options.what) - 1} more: one table at a time")
    try:
        return _table(wanted(options), options)
    except OSError as error:
        where = error.filename or options.run_dir
        raise SimulationError(f"{where}: {(error.strerror or str(error)).lower()}") from None


def wanted(options: argparse.Namespace) -> Wanted:
    """Raises ScenarioError."""
    table = catalogue.load(options.what[0])
    usual = Path("runs") / "papers" / f"{catalogue.stem(table.id)}-{options.scale}"
    seeds = options.seeds or table.scaled(options.scale).seeds
    return Wanted(table, options.scale, seeds, options.run_dir or usual)


def _table(mine: Wanted, options: argparse.Namespace) -> int:
    place = resolving.Where(data_folder(options.data_dir, os.environ), shared(), options.device)
    every = cells(mine, lambda cell: resolving.scenario(mine.table, mine.scale, cell, place))
    failed = _run(mine, every, options)
    outcome = replace(
        read(mine, every),
        notes=resolving.notes(mine.table, mine.scale, place),
        failed=tuple(f"{name}: {why}" for name, why in failed.items()),
    )
    print(rendering.json(outcome) if options.format == "json" else f"\n{rendering.text(outcome)}")
    if options.write is not None:
        _write(outcome, options)
    if failed:
        name, why = next(iter(failed.items()))
        raise SimulationError(
            f"{name}: {why}" + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        )
    return 0


def _write(outcome: Outcome, options: argparse.Namespace) -> None:
    mine = outcome.wanted
    words = ["compare", mine.table.id, "--scale", mine.scale, "--seeds", str(mine.seeds)]
    if options.device != "cpu":
        words += ["--device", options.device]
    command = shlex.join(["device-runtime", *words, "--write", str(options.write)])
    page.write(options.write, f"{mine.table.id} {mine.scale}", rendering.markdown(outcome, command))


def _run(mine: Wanted, every: Sequence[Cell], options: argparse.Namespace) -> dict[Name, str]:
    """Every run that is missing; those that failed, with the reason."""
    for plan in plans(every):
        plan.check_folder()
    out = sys.stderr if options.format == "json" else sys.stdout
    mine.folder.mkdir(parents=True, exist_ok=True)
    with interruptible(), occupied(mine.folder) as held:
        missing = jobs(every)
        print(said(mine, every, len(missing)), file=out, flush=True)
        for plan in plans(every):
            if lacking := plan.missing():
                check(plan.scenario, lacking, ExecutorWish())
            plan.save()
        if not missing:
            return {}
        parallel = min(options.parallel or usable_cores(), len(missing))
        workers = max(1, usable_cores() // parallel)
        rounds = {name: _rounds(job) for name, job in missing.items()}
        bars = options.format == "text" and sys.stdout.isatty()
        view = Noting(Bars(list(missing), rounds) if bars else Lines(list(missing), rounds, out))
        try:
            children = Children(("--probes", "0", "--workers", str(workers)), parallel, workers, (held,))
            run_jobs(missing, children, view)
        except KeyboardInterrupt:
            view.close()
            print(f"stopped: {len(jobs(every))} runs are left; the same command goes on", file=sys.stderr)
            raise
        except SimulationError:
            if not view.failed:
                raise
        finally:
            view.close()
        return view.failed


def _rounds(job: Job) -> int:
    """Some systems are done in fewer than the table has."""
    return of_policy(job.plan.scenario, job.name.policy).task.rounds


def said(mine: Wanted, every: Sequence[Cell], missing: int) -> str:
    """What is run, in the first lines of the output."""
    runs = sum(len(plan.names) for plan in plans(every))
    there = f", {runs - missing} of them finished before" if missing < runs else ""
    seeds = f"{mine.seeds} seed{'s' if mine.seeds > 1 else ''}"
    about = f"scale {mine.scale}, {seeds}: {runs} runs{there}; kept in {mine.folder}/"
    return f"{mine.table.id}: {mine.table.title}\n{about}"


class Noting:
    """A view that remembers what failed."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.failed: dict[Name, str] = {}

    def moved(self, name: Name, tick: Tick) -> None:
        self._view.moved(name, tick)

    def working(self, name: Name, now: Working) -> None:
        self._view.working(name, now)

    def ended(self, name: Name, why: str) -> None:
        if why:
            self.failed[name] = why
        self._view.ended(name, why)

    def close(self) -> None:
        self._view.close()
