"""Makes the plan of a comparison from the options of `device-runtime simulate`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.options import COLUMN_FLAGS, COLUMN_HELP, listed, positive
from device_runtime.cli.setting_options import option_values
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.compare.completing import RunOptions
from device_runtime.simulation.compare.figures import asked_devices, duration
from device_runtime.simulation.compare.plan import (
    ComparisonPlan,
    WantedRuns,
    counted_seeds,
    planned,
    scenario_in,
)
from device_runtime.simulation.compare.progress import (
    NoProgress,
    ProgressBars,
    ProgressLines,
    ProgressView,
    Rounds,
)
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.data.spec import PARTITIONS, SOURCES
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.simulation.scenarios.scenario import Scenario

PRESET = "digits"
SCENARIO_POLICIES = ("choose",)
"""The policies of a given scenario without --compare."""
PRESET_POLICIES = ("choose", "drop")
"""The policies that are compared when no scenario is given either."""

NOT_SIMULATED = (*scenarios.NOT_OURS, "name", "keep_versions", "masks.helpers")
"""Settings of a task that a simulation has not: stand-ins take the place of its mask helpers."""
_OF_DATA = {
    "data": "source",
    "data_path": "path",
    "partition": "partition",
    "alpha": "alpha",
    "device_test_share": "device_test_share",
    **{name: name for name in COLUMN_FLAGS},
}
"""Flag -> field of the data."""


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the options of the samples and of their division, which have no defaults."""
    add = parser.add_argument
    add("--data", metavar="SOURCE", help=f"Take samples from one of: {', '.join(SOURCES)}.")
    add("--data-path", metavar="PATH", help="Read them from this file or folder, where the source needs one.")
    add("--partition", metavar="HOW", help=f"Divide them by one of: {', '.join(PARTITIONS)}.")
    add(
        "--alpha",
        type=positive,
        metavar="X",
        help="Divide Dirichlet partitions more evenly, the larger X is.",
    )
    for name, text in COLUMN_HELP.items():
        add(f"--{name}", metavar="COLUMN", help=text)


def data_values(options: argparse.Namespace) -> dict[str, Any]:
    """The given options of `add_data`, as fields of the data."""
    values = {field: getattr(options, flag, None) for flag, field in _OF_DATA.items()}
    return {field: value for field, value in values.items() if value is not None}


def plan_of(options: argparse.Namespace) -> ComparisonPlan:
    """The plan of the comparison: that in --run-dir, if neither a scenario nor flags but --rounds are given.

    Raises ScenarioError.
    """
    over = overrides(options)
    before = scenario_in(options.run_dir) if options.run_dir else None
    if before is not None and options.scenario is None and not over:
        scenario = before
    elif before is not None and options.scenario is None and over == {"task": {"rounds": options.rounds}}:
        task = msgspec.structs.replace(before.task, rounds=options.rounds)
        scenario = msgspec.structs.replace(before, task=task)
    else:
        scenario = scenarios.load(options.scenario or PRESET, over)
    if options.seeds and options.seed:
        raise ScenarioError("--seed and --seeds both say the seeds: give one of them")
    selection = WantedRuns(
        policies=policies_of(options) or None,
        seeds=counted_seeds(options.seed) if options.seed else options.seeds,
        target=options.target,
        command=shlex.join(["device-runtime", *sys.argv[1:]]),
        usual=SCENARIO_POLICIES if options.scenario else PRESET_POLICIES,
        part=bool(options.policy or options.seed),
    )
    return planned(scenario, selection, options.run_dir)


def description(plan: ComparisonPlan, missing: Sequence[RunName]) -> str:
    """The first lines of the output: what is run."""
    scenario, task, comparison = plan.scenario, plan.scenario.task, plan.comparison
    runs = len(plan.names)
    rest = runs - len(missing)
    numbers = comparison.seed_numbers
    seeds = f"{len(numbers)} seed{'s' if len(numbers) > 1 else ''}"
    if not isinstance(comparison.seeds, int):
        seeds = f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    return (
        f"{scenario.name}: {scenario.devices:,} devices of fleet {scenario.fleet.name}, "
        f"{scenario.data.source} divided by {scenario.data.partition}; {task.rounds} rounds of at most "
        f"{duration(task.round_deadline_s)}, {asked_devices(task)}"
        f"{scenario.trained_in}\n"
        f"{', '.join(comparison.policies)}; {seeds}: {runs} run{'s' if runs > 1 else ''}"
        f"{f', {rest} of them finished before' if rest else ''}; kept in {plan.folder}/"
    )


def resume_hint(plan: ComparisonPlan, own: Sequence[str]) -> str:
    """The command that goes on with a comparison that was stopped. own: the values of `--kind`."""
    named = [word for source in own for word in ("--kind", source)]
    if plan.part:
        named += ["--policy", ",".join(plan.comparison.policies)]
        named += ["--seed", ",".join(map(str, plan.comparison.seed_numbers))]
    return f"go on with: {shlex.join(['device-runtime', 'simulate', '--run-dir', str(plan.folder), *named])}"


def unwritable(error: OSError, folder: Path) -> SimulationError:
    """A SimulationError for an OSError, such as no space left or no permission."""
    return SimulationError(f"{error.filename or folder}: {(error.strerror or str(error)).lower()}")


def run_options(options: argparse.Namespace) -> RunOptions:
    """The executor, the trackers, and the models to keep."""
    request = ExecutorRequest(options.executor, options.workers, options.address)
    tracked = tuple(options.track)
    return RunOptions(request, trackers=tracked, turn=options.turn, keep_models=options.keep_models)


def view(missing: Sequence[RunName], rounds: Rounds, options: argparse.Namespace) -> ProgressView:
    """The view of these runs: lines or bars on standard output, with JSON on standard error."""
    if not missing:
        return NoProgress()
    if options.format == "json":
        return ProgressLines(missing, rounds, sys.stderr)
    return (
        ProgressBars(missing, rounds) if sys.stdout.isatty() else ProgressLines(missing, rounds, sys.stdout)
    )


def presets() -> str:
    """One line for each preset and policy."""
    by_name = {name: scenarios.load(name) for name in scenarios.preset_names()}
    drawn = {name: fleets.load(name) for name in fleets.preset_names()}
    lines = ["scenarios"]
    lines += [f"  {name:22}{_of_scenario(each)}" for name, each in by_name.items()]
    lines += ["fleets (given the task of digits unless a scenario says otherwise)"]
    lines += [f"  {name:22}{_of_fleet(spec)}" for name, spec in drawn.items()]
    lines += ["policies (besides, every system: device-runtime systems)"]
    lines += [f"  {name:22}{what}" for name, what in scenarios.POLICIES.items()]
    return "\n".join(lines)


def _of_scenario(scenario: Scenario) -> str:
    task = scenario.task
    return (
        f"{scenario.devices} devices of {scenario.fleet.name}; {scenario.data.source} by "
        f"{scenario.data.partition}; {task.rounds} rounds of {duration(task.round_deadline_s)}; {task.bundle}"
    )


def _of_fleet(spec: FleetSpec) -> str:
    whole = sum(group.share for group in spec.groups.values())
    return ", ".join(f"{group.share / whole:.0%} {name}" for name, group in spec.groups.items())


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The given flags, as tables of a scenario."""
    validation = {} if options.validation_share is None else {"validation_share": options.validation_share}
    over: dict[str, Any] = {
        "task": option_values(options, Task, NOT_SIMULATED),
        "all_kinds": option_values(options, SharedSettings),
        "data": data_values(options) | validation,
        "devices": options.devices,
        "engine": options.engine,
        "place": options.place,
        "module": options.module,
        "own_loss": options.own_loss,
        "precision": options.precision,
    }
    return {name: value for name, value in over.items() if value not in ({}, None)}


def policies_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The policies of --compare or --policy; empty for neither. Raises ScenarioError for both."""
    if options.compare and options.policy:
        raise ScenarioError("--policy and --compare both name the policies: give one of them")
    return _policies(options.compare) if options.compare else tuple(dict.fromkeys(options.policy))


def _policies(text: str) -> tuple[str, ...]:
    """The policies in "kinds=choose,drop". Raises ScenarioError."""
    what, equals, names = text.partition("=")
    if what != "kinds" or not equals:
        raise ScenarioError(f"--compare {text}: expected kinds=A,B with {', '.join(scenarios.names())}")
    named = tuple(dict.fromkeys(listed(names)))
    if not named:
        raise ScenarioError(f"--compare {text}: names no policy; there are {', '.join(scenarios.names())}")
    return named
