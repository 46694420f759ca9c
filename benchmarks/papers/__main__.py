"""Runs the tables of papers: `python -m benchmarks.papers TABLE`, in a clone of the project.

Without a table it lists all of them. Finished runs are not run again; with --write they are kept in the
repository. Long tables can be made in pieces (--columns, --rows), on several machines.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.papers import catalogue, kept, pages, rendering, resolving, stamps
from benchmarks.papers.outcome import TableOutcome, read
from benchmarks.papers.places import ENV, data_folder, shared
from benchmarks.papers.rendering import listing
from benchmarks.papers.runs import Cell, TableJob, WantedTable, cells, jobs, plans, total
from benchmarks.papers.table import SCALES
from benchmarks.papers.tuning import best_rates, rows_by_rate
from device_runtime.aggregator.errors import AggregatorError
from device_runtime.cli.options import add_format, count
from device_runtime.models.errors import ModelError
from device_runtime.profiles.measure import usable_cores
from device_runtime.simulation.compare.plan import check
from device_runtime.simulation.compare.progress import (
    ProgressBars,
    ProgressLines,
    ProgressView,
    RoundDone,
    UpdatesTrained,
)
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.compare.running import (
    ProcessOptions,
    folder_lock,
    interruptible,
    run_jobs,
)
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.scenarios.scenario import of_policy

ERRORS = (SimulationError, AggregatorError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add(
        "table",
        nargs="?",
        metavar="TABLE",
        help="Run this table, such as paper:002-t4.3 (default: list the tables).",
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
    add(
        "--check",
        type=Path,
        nargs="?",
        const=pages.FOLDER,
        metavar="DIR",
        help=f"List the sections of these pages whose code has changed since (default: {pages.FOLDER}).",
    )
    add("--columns", type=names, metavar="A,B", default=(), help="Run only these columns (default: all).")
    add("--rows", type=names, metavar="A,B", default=(), help="Run only these rows (default: all).")
    add("--only-kept", action="store_true", help="Run nothing: show the runs that are kept.")
    add(
        "--kept",
        type=Path,
        default=kept.FOLDER,
        metavar="DIR",
        help="Read finished runs from this folder, and with --write add to it (default: beside the tables).",
    )
    add(
        "--write",
        type=Path,
        metavar="DIR",
        help="Write the table's section of the pages in this folder, and keep its runs; without a table, "
        "write the index.",
    )
    add(
        "--rates",
        type=learning_rates,
        metavar="A,B,..",
        help="Compare these learning rates for each row on a part of the training samples.",
    )
    add_format(parser)


def names(text: str) -> tuple[str, ...]:
    """The names in a list such as "a,b"."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 if a run fails, after the table of the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except (*ERRORS, ModelError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Runs the command, and returns its exit status.

    Raises SimulationError, ModelError; if a run fails, after the table of the others was printed.
    """
    if options.check is not None:
        print(pages.check(options.check))
        return 0
    if options.table is None and options.write is not None:
        pages.write_index(options.write)
        return 0
    if options.table is None:
        print(listing(data_folder(options.data_dir, os.environ), shared()))
        return 0
    try:
        return _table(table_of(options), options)
    except OSError as error:
        where = error.filename or options.run_dir
        raise SimulationError(f"{where}: {(error.strerror or str(error)).lower()}") from None


def learning_rates(text: str) -> tuple[float, ...]:
    """Parses learning rates that are separated by commas. Raises ValueError."""
    rates = tuple(float(part) for part in text.split(","))
    if not all(0 < rate < 1e3 for rate in rates) or len(set(rates)) < len(rates):
        raise ValueError(text)
    return rates


def table_of(options: argparse.Namespace) -> WantedTable:
    """The table that the options ask for. Raises ScenarioError."""
    table = catalogue.load(options.table)
    usual = Path("runs") / "papers" / f"{catalogue.stem(table.id)}-{options.scale}"
    if options.rates:
        part = table.only(options.scale, options.columns, options.rows)
        table = rows_by_rate(part, options.scale, options.rates)
        usual = Path(f"{usual}-rates")
    seeds = options.seeds or table.scaled(options.scale).seeds
    return WantedTable(
        table,
        options.scale,
        seeds,
        options.run_dir or usual,
        store=options.kept,
        columns=() if options.rates else options.columns,
        rows=() if options.rates else options.rows,
        only_kept=options.only_kept,
    )


def _table(request: WantedTable, options: argparse.Namespace) -> int:
    place = resolving.Resources(data_folder(options.data_dir, os.environ), shared(), options.device)
    every = cells(request, place)
    failed = {} if request.only_kept else _run(request, every, options)
    outcome = replace(
        read(request, every),
        notes=resolving.notes(
            request.table, request.scale, place.shared, {cell.column.id: cell.form for cell in every}
        ),
        failed=tuple(f"{name}: {why}" for name, why in failed.items()),
    )
    print(rendering.json(outcome) if options.format == "json" else f"\n{rendering.text(outcome)}")
    if options.write is not None:
        for cell in every:
            _keep(cell, range(request.seeds))
    if options.rates:
        print("best:", ", ".join(f"{row} {rate:g}" for row, rate in best_rates(outcome.values).items()))
    elif options.write is not None:
        _write(outcome, options)
    if failed:
        name, why = next(iter(failed.items()))
        raise SimulationError(
            f"{name}: {why}" + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        )
    return 0


def _keep(cell: Cell, seeds: Iterable[int]) -> None:
    """Keeps the finished runs of the cell that are not kept yet."""
    for seed in seeds:
        if not cell.is_kept(seed) and cell.is_finished(seed):
            cell.keep(seed)


def _write(outcome: TableOutcome, options: argparse.Namespace) -> None:
    request = outcome.request
    words = [request.table.id, "--scale", request.scale, "--seeds", str(request.seeds)]
    if options.device != "cpu":
        words += ["--device", options.device]
    command = shlex.join(["python", "-m", "benchmarks.papers", *words, "--write", str(options.write)])
    pages.write(options.write, outcome, command)


def _run(request: WantedTable, every: Sequence[Cell], options: argparse.Namespace) -> dict[RunName, str]:
    """Does all missing runs, and returns those that failed, with the reason."""
    for plan in plans(every):
        plan.check_folder()
    out = sys.stderr if options.format == "json" else sys.stdout
    request.folder.mkdir(parents=True, exist_ok=True)
    with interruptible(), folder_lock(request.folder) as lock:
        missing = jobs(every, request.seeds)
        print(headline(request, every, len(missing)), file=out, flush=True)
        for plan in plans(every):
            if lacking := [job.name for job in missing.values() if job.plan is plan]:
                check(plan.scenario, lacking, ExecutorRequest())
            plan.save()
        if not missing:
            return {}
        commit = stamps.commit()
        for job in missing.values():
            kept.note_commit(job.folder, commit)
        parallel = min(options.parallel or usable_cores(), len(missing))
        workers = max(1, usable_cores() // parallel)
        rounds = {name: _rounds(job) for name, job in missing.items()}
        bars = options.format == "text" and sys.stdout.isatty()
        view = Noting(
            ProgressBars(list(missing), rounds) if bars else ProgressLines(list(missing), rounds, out),
            lambda name: _keep(missing[name].cell, [name.seed]) if options.write else None,
        )
        try:
            children = ProcessOptions(("--workers", str(workers)), parallel, workers, (lock,))
            run_jobs(missing, children, view)
        except KeyboardInterrupt:
            view.close()
            print(
                f"stopped: {len(jobs(every, request.seeds))} runs are left; the same command goes on",
                file=sys.stderr,
            )
            raise
        except SimulationError:
            if not view.failed:
                raise
        finally:
            view.close()
        return view.failed


def _rounds(job: TableJob) -> int:
    """The rounds of a run; some systems have fewer than the table."""
    return of_policy(job.plan.scenario, job.name.policy).task.rounds


def headline(request: WantedTable, every: Sequence[Cell], missing: int) -> str:
    """The first lines of the output: the table, and the runs to do."""
    shown_cells = [cell for cell in every if request.has(cell.column, cell.row)]
    runs = total(shown_cells, request.seeds)
    before = f", {runs - missing} of them finished before" if missing < runs else ""
    seeds = f"{request.seeds} seed{'s' if request.seeds > 1 else ''}"
    about = f"scale {request.scale}, {seeds}: {runs} runs{before}; kept in {request.folder}/"
    return f"{request.table.id}: {request.table.title}\n{about}"


class Noting:
    """A progress view that remembers the runs that failed, and calls `finished` with each of the others."""

    def __init__(self, view: ProgressView, finished: Callable[[RunName], None]) -> None:
        self._view = view
        self._finished = finished
        self.failed: dict[RunName, str] = {}

    def moved(self, name: RunName, tick: RoundDone) -> None:
        self._view.moved(name, tick)

    def working(self, name: RunName, now: UpdatesTrained) -> None:
        self._view.working(name, now)

    def ended(self, name: RunName, why: str) -> None:
        if why:
            self.failed[name] = why
        else:
            self._finished(name)
        self._view.ended(name, why)

    def close(self) -> None:
        self._view.close()


if __name__ == "__main__":
    sys.exit(main())
