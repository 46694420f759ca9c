"""`device-runtime fleet`: predicts the costs of a round for a fleet, and who is a straggler."""

from __future__ import annotations

import argparse
from pathlib import Path

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.options import add_format, add_plugins, as_json, count, load_plugins
from device_runtime.cli.setting_options import add_settings, option_values
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.report import fleet as report
from device_runtime.simulation.rounds.forecast import forecast, with_deadline
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.simulation.scenarios.scenario import Scenario

from .simulate_options import NOT_SIMULATED, PRESET, add_data, data_values

ERRORS = (SimulationError, AggregatorError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; those of the scenario override its file."""
    add = parser.add_argument
    add(
        "scenario",
        nargs="?",
        default=PRESET,
        metavar="SCENARIO",
        help=f"Look at this fleet or scenario, a file or a preset (default: {PRESET}).",
    )
    add("--devices", type=count, metavar="N", help="Draw this many devices.")
    add("--seed", type=int, default=0, metavar="N", help="Draw them by this seed (default: 0).")
    add_data(parser)
    add(
        "--out",
        type=Path,
        default=Path("fleet.png"),
        metavar="PNG",
        help="Draw the picture into this file (default: fleet.png).",
    )
    add_format(parser)
    add_plugins(parser)
    task = parser.add_argument_group("settings of the task, over those of SCENARIO")
    add_settings(task, Task, NOT_SIMULATED, scenarios.TASK_DEFAULTS)


def run(options: argparse.Namespace) -> int:
    """Prints who is a straggler and the table, and draws the picture. Raises as `forecast` does."""
    load_plugins(options)
    out: Path = options.out
    if out.suffix != ".png":
        raise ScenarioError(f"--out {out}: the picture is a PNG, expected a name that ends in .png")
    if not out.parent.is_dir():
        raise ScenarioError(f"{out} cannot be written: there is no folder {out.parent}")
    predicted = forecast(with_deadline(_scenario(options)), options.seed)
    drawing = report.picture(predicted)
    try:
        drawing.save(out)
    except OSError as error:
        raise ScenarioError(f"{out} cannot be written: {(error.strerror or str(error)).lower()}") from None
    if options.format == "json":
        print(as_json(report.by_group(predicted)))
    else:
        print(f"{report.text(predicted)}\n\npicture {out}")
    return 0


def _scenario(options: argparse.Namespace) -> Scenario:
    over = {
        "task": option_values(options, Task, NOT_SIMULATED),
        "data": data_values(options),
        "devices": options.devices,
    }
    return scenarios.load(options.scenario, {name: value for name, value in over.items() if value})
