"""`device-runtime simulate --sweep`: runs a scenario at points of some settings, and names the best."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from device_runtime.cli.options import as_json, listed
from device_runtime.simulation.compare.completing import CompletionOptions, working_in
from device_runtime.simulation.compare.plan import SWEEP, counted_seeds
from device_runtime.simulation.compare.progress import ProgressView
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.compare.sweep import (
    SweepPlan,
    WantedSweep,
    check_sweep,
    complete_sweep,
    planned_sweep,
    sweep_in,
)
from device_runtime.simulation.compare.swept_settings import POLICY
from device_runtime.simulation.data.loading import LastDataSet
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.simulation.scenarios.scenario import CHOOSE, decode

from .simulate_options import PRESET, overrides, policies_of, run_options, unwritable, view


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add the options of a sweep."""
    add = parser.add_argument_group("sweep of settings, judged on held-out training samples").add_argument
    add(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=A,B,..",
        help="Try these values of a setting, such as lr=0.01,0.1; repeated: every combination.",
    )
    add(
        "--point",
        action="append",
        default=[],
        metavar="NAME=A,NAME=B,..",
        help="Try these settings together, in place of every combination; may be repeated.",
    )
    add(
        "--validation-share",
        type=_share,
        metavar="X",
        help="Judge on this share of the training samples, in place of the test samples (of a sweep: 0.2).",
    )


def is_sweep(options: argparse.Namespace) -> bool:
    """Whether the options are those of a sweep, or its folder."""
    in_folder = options.run_dir is not None and (options.run_dir / SWEEP).exists()
    return bool(options.sweep or options.point or in_folder)


def sweep_of(options: argparse.Namespace) -> SweepPlan:
    """The plan of the sweep: that in --run-dir, if nothing else is given. Raises ScenarioError."""
    over = overrides(options)
    before = sweep_in(options.run_dir) if options.run_dir and (options.run_dir / SWEEP).exists() else None
    if not options.sweep and not options.point:
        if before is None or over or options.scenario is not None:
            raise ScenarioError(f"{options.run_dir} holds a sweep: give --sweep or --point too")
        return before
    if options.sweep and options.point:
        raise ScenarioError("--sweep tries every combination, --point single ones: give one of them")
    if before is not None and options.scenario is None and not over:
        scenario = decode(bytes(before.sweep.scenario))
    else:
        scenario = scenarios.load(options.scenario or PRESET, over)
    policies = policies_of(options) or (CHOOSE,)
    axes: dict[str, list[str]] = {}
    for text in options.sweep:
        name, values = _named(text, "--sweep")
        axes.setdefault(name, []).extend(listed(values))
    if len(policies) > 1:
        if options.point:
            raise ScenarioError("--point takes a policy as a setting: --point policy=fedavg,lr=0.1")
        axes.setdefault(POLICY, []).extend(policies)
    selection = WantedSweep(
        axes=axes or None,
        points=[dict(_named(word, "--point") for word in listed(text)) for text in options.point],
        policy=policies[0],
        seeds=counted_seeds(options.seed) if options.seed else options.seeds,
        command=shlex.join(["device-runtime", *sys.argv[1:]]),
    )
    return planned_sweep(scenario, selection, options.run_dir)


def run_sweep(options: argparse.Namespace) -> int:
    """Does every missing run, then reports, without points that failed. Raises SimulationError."""
    from device_runtime.simulation.report.sweep_report import read_sweep, write_sweep

    sweep, how = sweep_of(options), run_options(options)
    begun: list[RunName] = []

    def begin(missing: Sequence[RunName]) -> ProgressView:
        out = sys.stderr if options.format == "json" else sys.stdout
        print(_description(sweep, len(missing)), file=out, flush=True)
        begun.extend(missing)
        return view(missing, sweep.rounds(), options)

    try:
        check_sweep(sweep, replace(how, load=LastDataSet().load))
        with working_in(sweep.folder) as locks:
            failed = complete_sweep(sweep, CompletionOptions(how, options.parallel), begin, locks)
            report = write_sweep(read_sweep(sweep, failed))
    except KeyboardInterrupt:
        if begun:
            finished = len(sweep.rounds()) - len(sweep.missing())
            again = shlex.join(["device-runtime", "simulate", "--run-dir", str(sweep.folder)])
            print(
                f"stopped: {finished} of {len(sweep.rounds())} runs are finished; go on with: {again}",
                file=sys.stderr,
            )
        raise
    except OSError as error:
        raise unwritable(error, Path(sweep.folder)) from None
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(as_json(report.values()) if options.format == "json" else report.text(wide))
    if failed:
        text, why = next(iter(failed.items()))
        raise SimulationError(
            f"{text}: {why}" + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        )
    return 0


def _description(sweep: SweepPlan, missing: int) -> str:
    """The first lines of the output: what is run."""
    scenario, runs = sweep.points[0].plan.scenario, len(sweep.rounds())
    before = f", {runs - missing} of them finished before" if missing < runs else ""
    return (
        f"{scenario.name}: {len(sweep.points)} points of {', '.join(sweep.settings)}; "
        f"{scenario.devices:,} devices of fleet {scenario.fleet.name}, {scenario.data.source}\n"
        f"judged by {sweep.judged_by}\n"
        f"{runs} run{'s' if runs > 1 else ''}{before}; kept in {sweep.folder}/"
    )


def _named(text: str, option: str) -> tuple[str, str]:
    """The name and the rest of "lr=0.01,0.1". Raises ScenarioError."""
    name, equals, rest = text.partition("=")
    if not name.strip() or not equals or not rest.strip():
        raise ScenarioError(f"{option} {text}: expected a setting and its values, such as lr=0.01,0.1")
    return name.strip(), rest.strip()


def _share(text: str) -> float:
    """An argument that is a share, more than 0 and less than 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share, more than 0 and less than 1")
    return value
