"""Makes the plan of a comparison from the options of `device-runtime simulate`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.options import COLUMN_FLAGS, COLUMN_HELP, listed, positive
from device_runtime.cli.setting_options import option_values
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.compare.figures import asked_devices, duration
from device_runtime.simulation.compare.plan import ComparisonPlan, WantedRuns, planned, scenario_in
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.data.spec import PARTITIONS, SOURCES
from device_runtime.simulation.errors import ScenarioError
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
    over = _over(options)
    before = scenario_in(options.run_dir) if options.run_dir else None
    if before is not None and options.scenario is None and not over:
        scenario = before
    elif before is not None and options.scenario is None and over == {"task": {"rounds": options.rounds}}:
        task = msgspec.structs.replace(before.task, rounds=options.rounds)
        scenario = msgspec.structs.replace(before, task=task)
    else:
        scenario = scenarios.load(options.scenario or PRESET, over)
    selection = WantedRuns(
        policies=_policies(options.compare) if options.compare else None,
        seeds=options.seeds,
        target=options.target,
        command=shlex.join(["device-runtime", *sys.argv[1:]]),
        usual=SCENARIO_POLICIES if options.scenario else PRESET_POLICIES,
    )
    return planned(scenario, selection, options.run_dir)


def description(plan: ComparisonPlan, missing: Sequence[RunName]) -> str:
    """The first lines of the output: what is run."""
    scenario, task, comparison = plan.scenario, plan.scenario.task, plan.comparison
    runs = len(plan.names)
    rest = runs - len(missing)
    seeds = f"{comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}"
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
    return f"go on with: {shlex.join(['device-runtime', 'simulate', '--run-dir', str(plan.folder), *named])}"


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


def _over(options: argparse.Namespace) -> dict[str, Any]:
    """The given flags, as tables of a scenario."""
    over: dict[str, Any] = {
        "task": option_values(options, Task, NOT_SIMULATED),
        "all_kinds": option_values(options, SharedSettings),
        "data": data_values(options),
        "devices": options.devices,
        "engine": options.engine,
        "place": options.place,
        "module": options.module,
        "precision": options.precision,
    }
    return {name: value for name, value in over.items() if value not in ({}, None)}


def _policies(text: str) -> tuple[str, ...]:
    """The policies in "kinds=choose,drop". Raises ScenarioError."""
    what, equals, names = text.partition("=")
    if what != "kinds" or not equals:
        raise ScenarioError(f"--compare {text}: expected kinds=A,B with {', '.join(scenarios.names())}")
    named = tuple(dict.fromkeys(listed(names)))
    if not named:
        raise ScenarioError(f"--compare {text}: names no policy; there are {', '.join(scenarios.names())}")
    return named
