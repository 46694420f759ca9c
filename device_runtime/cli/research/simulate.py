"""`device-runtime simulate`: simulates a fleet on virtual time, under one policy or several."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.options import add_format, add_plugins, count, listed, load_plugins, positive
from device_runtime.cli.setting_options import add_settings
from device_runtime.models.available_engines.available import AUTO, ENGINES
from device_runtime.models.bundles.names import TRAINING_PRECISIONS
from device_runtime.simulation.compare.completing import (
    CompletionOptions,
    check_runs,
    complete,
    perform,
    working_in,
)
from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan, scenario_in
from device_runtime.simulation.compare.progress import ProgressView, ProgressWriter
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.compare.running import end_with_parent
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.executors import choice
from device_runtime.simulation.scenarios import scenario as scenarios

from .simulate_options import (
    NOT_SIMULATED,
    PRESET,
    add_data,
    description,
    plan_of,
    presets,
    resume_hint,
    run_options,
    unwritable,
    view,
)
from .simulate_sweep import add_sweep, is_sweep, run_sweep

if TYPE_CHECKING:
    from device_runtime.simulation.report.write import WrittenReport

log = logging.getLogger(__name__)

ERRORS = (SimulationError, AggregatorError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; those of the scenario override its file."""
    add = parser.add_argument
    add(
        "scenario",
        nargs="?",
        metavar="SCENARIO",
        help=f"Simulate this fleet or scenario, a file or a preset (default: {PRESET}, choose against drop).",
    )
    add("--list", action="store_true", help="List the presets and the policies, and end.")
    add("--devices", type=count, metavar="N", help="Simulate this many devices.")
    add(
        "--engine",
        choices=(AUTO, *ENGINES),
        help="Train with this engine; torch is quicker for convolutions (default: auto).",
    )
    add(
        "--device",
        dest="place",
        metavar="DEVICE",
        help="Train on cpu or, by torch, on cuda or cuda:N (default: cpu).",
    )
    add(
        "--module",
        metavar="FILE.py:NAME",
        help="Train a bundle of own code by torch: with this nn.Module, or what this function gives; "
        "PACKAGE.MODULE:NAME, as for export, works too.",
    )
    add(
        "--own-loss",
        metavar="FILE.py:NAME",
        help="Train a bundle with a loss of one's own by torch, with this function.",
    )
    add(
        "--precision",
        choices=TRAINING_PRECISIONS,
        help="Train by torch in this precision, tf32 on a GPU only; results differ (default: float32).",
    )
    add_data(parser)
    add(
        "--device-test-share",
        type=positive,
        metavar="X",
        help="Test the served model on this share of each device's samples, which does not train (0 to 1).",
    )
    add("--compare", metavar="kinds=A,B,..", help="Compare these policies; --list lists them.")
    add("--seeds", type=count, metavar="N", help="Run with seeds 0 to N-1 (default: 1).")
    add(
        "--policy",
        action="extend",
        default=[],
        type=listed,
        metavar="P,..",
        help="Do only these policies of a comparison, while other machines do others; may be repeated.",
    )
    add(
        "--seed",
        action="extend",
        default=[],
        type=_seeds,
        metavar="N,..",
        help="Do only these seeds of a comparison; `device-runtime compare` joins parts; may be repeated.",
    )
    add(
        "--target",
        type=_percentage,
        metavar="PERCENT",
        help="Measure the time to this accuracy (default: what all reach, above chance).",
    )
    add_sweep(parser)
    _add_performance(parser)
    add("--run-dir", type=Path, help="Keep the runs in this folder; what is finished there is not run again.")
    add(
        "--keep-models",
        type=count,
        default=0,
        metavar="N",
        help="Keep the model that every N-th round serves, in the folder of its run (default: none).",
    )
    add(
        "--tables",
        action="store_true",
        help="Write devices.csv and updates.csv into it: a row for each device, and for each update.",
    )
    add("--all-tables", action="store_true", help="Print all tables, which the report page has too.")
    add_format(parser)
    add_plugins(parser)
    add("--only", help=argparse.SUPPRESS)
    add("--turn", type=_whole, help=argparse.SUPPRESS)
    task = parser.add_argument_group("settings of the task, over those of SCENARIO")
    add_settings(task, Task, NOT_SIMULATED, scenarios.TASK_DEFAULTS)
    add_settings(task, SharedSettings)


def _add_performance(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--parallel",
        type=count,
        metavar="N",
        help="Do this many runs at a time (default: as many as usable cores).",
    )
    add(
        "--executor",
        choices=choice.names(),
        default=choice.AUTO,
        help="Train the devices with this executor (default: auto).",
    )
    add(
        "--workers",
        type=count,
        metavar="N",
        help="Give the executor this many processes (default: the cores that --parallel leaves).",
    )
    add("--address", help="Use the Ray cluster at this address, with --executor ray.")
    add("--probes", type=_whole, help=argparse.SUPPRESS)
    add(
        "--track",
        action="append",
        default=[],
        metavar="TRACKER",
        help="Log every run to tensorboard:FOLDER, wandb:PROJECT or mlflow:FOLDER: docs/trackers.md.",
    )


def run(options: argparse.Namespace) -> int:
    """Do every missing run, then report, without policies that failed. Raises SimulationError."""
    load_plugins(options)
    if options.list:
        print(presets())
        return 0
    if options.only:
        return _perform(options)
    if options.address and options.executor not in (choice.AUTO, "ray"):
        raise ScenarioError("--address is for --executor ray")
    if options.workers and options.executor in ("plain", "batched"):
        raise ScenarioError("--workers is for --executor processes and ray")
    if options.probes is not None:
        log.warning(
            "--probes has no effect any more: `python -m benchmarks.local_models` compares local models"
        )
    if is_sweep(options):
        _check_plots()
        return run_sweep(options)
    plan = plan_of(options)
    try:
        check_runs(plan, run_options(options))
        _check_plots()
        parts = [plan.of(name) for name in plan.names] if plan.part else []
        with working_in(plan.folder, parts) as locks:
            report, failed = _simulated(plan, options, locks)
    except OSError as error:
        raise unwritable(error, plan.folder) from None
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(report.json() if options.format == "json" else report.text(wide, options.all_tables))
    if failed is not None:
        raise failed
    return 0


def _check_plots() -> None:
    """Raises ModuleNotFoundError before anything is run, not at the end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("no plots without matplotlib", name="matplotlib")


def _simulated(
    plan: ComparisonPlan, options: argparse.Namespace, locks: tuple[int, ...]
) -> tuple[WrittenReport, SimulationError | None]:
    """The report of the policies that could be run, and the error of the others, if any."""
    from device_runtime.simulation.report.write import write

    begun: list[RunName] = []

    def begin(missing: Sequence[RunName]) -> ProgressView:
        out = sys.stderr if options.format == "json" else sys.stdout
        print(description(plan, missing), file=out, flush=True)
        begun.extend(missing)
        return view(missing, plan.scenario.task.rounds, options)

    how = CompletionOptions(run_options(options), options.parallel)
    try:
        done, failed = complete(plan, how, begin, locks)
    except KeyboardInterrupt:
        if begun:
            finished = len(plan.names) - len(plan.missing())
            hint = resume_hint(plan, options.plugins)
            print(f"stopped: {finished} of {len(plan.names)} runs are finished; {hint}", file=sys.stderr)
        raise
    return write(done, rows=options.tables), failed


def _perform(options: argparse.Namespace) -> int:
    """Do one run in this process, and report it on stdout: the command starts itself so."""
    end_with_parent()
    policy, _, seed = options.only.rpartition(":")
    scenario = scenario_in(options.run_dir)
    if scenario is None:
        raise ScenarioError(f"{options.run_dir} holds no scenario")
    name = RunName(policy, int(seed))
    plan = ComparisonPlan(scenario, Comparison(policies=(policy,)), options.run_dir)
    teller = ProgressWriter(sys.stdout)
    try:
        perform(scenario, name, plan.of(name), run_options(options), teller)
    except BrokenPipeError:  # the command that started this process has ended
        raise
    except OSError as error:
        failed = unwritable(error, plan.of(name))
        teller.fail(str(failed))
        raise failed from None
    return 0


def _whole(text: str) -> int:
    """An argument that is a whole number, 0 or more."""
    return 0 if text == "0" else count(text)


def _seeds(text: str) -> list[int]:
    """An argument of whole numbers from 0 on, separated by commas."""
    try:
        numbers = [int(word) for word in listed(text)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected seeds, whole numbers from 0 on, such as 3 or 3,4"
        )
    return numbers


def _percentage(text: str) -> float:
    """An argument in percent, returned as a share."""
    value = positive(text.removesuffix("%"))
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text}: expected percent, 1 to 100, such as 90 or 90%")
    return value / 100
