"""`device-runtime explain`: shows which update this device would choose, what each costs, and why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.cli.options import (
    DRAWN_SAMPLES,
    add_emulation,
    add_engine,
    add_format,
    add_plugins,
    as_json,
    count,
    listed,
    load_plugins,
    positive,
)
from device_runtime.models.errors import DataError
from device_runtime.user_account import NoHome, state_folder

from .policy_options import helpers

if TYPE_CHECKING:
    from device_runtime.aggregator.tasks.task import Task
    from device_runtime.broker.wire.messages import Masks
    from device_runtime.device.selection.choose import Candidate, UpdateChoice
    from device_runtime.models.bundles.bundle import Bundle
    from device_runtime.models.bundles.manifest import Manifest
    from device_runtime.profiles import Cost, DeviceProfile, Workload


@dataclass(frozen=True)
class ExplainRow:
    """One candidate, as --format json prints it.

    `statistics` is the part of the cost that is for class statistics, with --statistics. `reveals`: what the
    aggregator learns of the samples by an update in the clear, and `masked`: by a masked one.
    """

    kind: str
    cost: Cost | None
    taken: bool
    why: str
    statistics: Cost | None = None
    reveals: str = ""
    masked: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plugins(parser)
    parser.add_argument("--bundle", default="digits-wrn-10-1", help="Plan for the task of this bundle.")
    parser.add_argument(
        "--deadline", type=positive, default=60.0, metavar="S", help="Plan for a round of this many seconds."
    )
    parser.add_argument(
        "--data", type=Path, help="Plan for this local data; or say how much there is by --samples."
    )
    parser.add_argument(
        "--samples",
        type=count,
        metavar="N",
        help=f"Plan for this many samples, spread evenly over the classes (default: {DRAWN_SAMPLES}).",
    )
    parser.add_argument(
        "--kinds", help="Offer these kinds of update, the preferred first (default: as `kinds` says)."
    )
    parser.add_argument(
        "--codec", default="", metavar="WORD", help="Send updates by this codec, such as delta+int8+deflate."
    )
    parser.add_argument(
        "--head",
        choices=("auto", "trained", "closed-form"),
        default="auto",
        help="Plan for a task that serves this head (default: auto, in closed form for several kinds).",
    )
    parser.add_argument(
        "--statistics", action="store_true", help="Show what class statistics add to each kind."
    )
    parser.add_argument(
        "--mask-helpers",
        type=helpers,
        metavar="NAME=KEY,..",
        help="Plan for a round in which updates are masked for these helpers.",
    )
    parser.add_argument(
        "--board",
        metavar="NAME",
        help="Plan for this board by its shipped profile, as simulations do; nothing is measured.",
    )
    parser.add_argument("--state", type=Path, help="Tell the rules of the device in this folder, too.")
    add_format(parser)
    add_engine(parser)
    add_emulation(parser)


def run(options: argparse.Namespace) -> int:
    from tabulate import tabulate

    if options.data and options.samples:
        raise DataError("--data has its own number of samples: omit --samples")
    load_plugins(options)
    from device_runtime.device.doctor.installation import rules
    from device_runtime.models.bundles.bundle import Bundle, find_bundle

    from . import profile as profile_command

    bundle = Bundle.open(find_bundle(options.bundle))
    profile = _shipped(options) if options.board else profile_command.measure_profile(bundle, options)
    load = _workload(options, bundle)
    planned = _task(options, bundle)
    plan = _plan(options, planned, profile, load)
    rows = [_row(plan, candidate) for candidate in plan.candidates]
    if options.statistics:
        added = [_added(candidate, load, profile) for candidate in plan.candidates]
        rows = [replace(row, statistics=more) for row, more in zip(rows, added, strict=True)]
    if options.format == "json":
        print(as_json(rows))
        return 0
    print(f"{profile.name}, {load.samples} samples, deadline {options.deadline:g} s")
    heads = (*HEADERS[:-1], *(ADDED if options.statistics else ()), HEADERS[-1])
    print(tabulate([_cells(row, options.statistics) for row in rows], headers=heads, disable_numparse=True))
    print(plan.verdict)
    print(_rest(planned, plan), end="")
    print(_revealed(rows))
    if not (options.emulated or options.board):
        try:
            device_rules = list(rules(options.state or state_folder()))
        except NoHome:  # nor has any device a folder there
            device_rules = []
        for finding in device_rules:
            print(f"{finding.what}: {finding.found}")
    return 0


def _plan(
    options: argparse.Namespace, planned: PlannedTask, profile: DeviceProfile, load: Workload
) -> UpdateChoice:
    """The choice among the kinds, with their class statistics. Raises NoDevice."""
    from device_runtime.device.errors import NoDevice
    from device_runtime.device.masking.upload_terms import upload_terms
    from device_runtime.device.policy import work_gate
    from device_runtime.device.policy.rules import ANYTHING
    from device_runtime.device.selection.choose import choose
    from device_runtime.strategies.training.workload import workload

    kinds, manifests = planned.task.preferred(1), planned.manifests
    if options.state and not options.state.is_dir():
        raise NoDevice(f"no device is in {options.state}")
    policy = work_gate.kept_policy(options.state) if options.state else None
    allowed, masks = policy.allowed if policy else ANYTHING, _masks(options)
    passed_over = allowed.refuses_masks(masks)
    return choose(
        profile,
        kinds,
        {name: workload(manifest, load.class_counts) for name, manifest in manifests.items()},
        options.deadline,
        lambda form: passed_over or allowed.bars(form),
        upload_terms=upload_terms(masks, kinds, manifests.__getitem__) if masks else None,
    )


@dataclass(frozen=True)
class PlannedTask:
    """The task that is planned for, and the manifests by member of the models that it trains."""

    task: Task
    manifests: dict[str, Manifest]


def _task(options: argparse.Namespace, bundle: Bundle) -> PlannedTask:
    """Raises KindError for a task that cannot be."""
    from device_runtime.aggregator.errors import TaskError
    from device_runtime.aggregator.tasks import feasible
    from device_runtime.aggregator.tasks.kind_settings import kinds_named
    from device_runtime.aggregator.tasks.systems import with_codec
    from device_runtime.aggregator.tasks.task import Task
    from device_runtime.strategies.errors import KindError

    try:
        task = Task(bundle=options.bundle, head=options.head)
        if options.kinds:
            task = task.naming(kinds_named(listed(options.kinds)))
        parts = {name: part.manifest for name, part in feasible.trained_parts(task, bundle).items()}
        task = feasible.with_possible_head(feasible.with_members(task, tuple(parts)), bundle.manifest)
        task = with_codec(task, options.codec) if options.codec else task
    except TaskError as error:
        raise KindError(str(error)) from None
    return PlannedTask(task, {"": bundle.manifest, **parts})


def _rest(planned: PlannedTask, plan: UpdateChoice) -> str:
    """A line on when the device would rest; empty if it never does."""
    from device_runtime.device.selection.resting import least_percent

    least, of_classes = least_percent(plan), not planned.manifests[""].target.why_not_by_class
    if least == 100 or not of_classes or not planned.task.closed_form:
        return ""
    return (
        'If the task has rest = "on", it rests in rounds that want nothing of its classes, and takes part in '
        f"{least}% of them.\n"
    )


BESIDE = (
    "In the clear, class statistics add mean features and number of samples of each class.\n"
    "Masked or not, the aggregator sees the kind, the number of samples, the time and the energy."
)
HEADERS = ("", "kind", "seconds", "peak MB", "kB up", "kB down", "joule", "why")
ADDED = ("of it statistics: s", "kB up", "joule")


def _shipped(options: argparse.Namespace) -> DeviceProfile:
    """The profile of --board. Raises ProfileError."""
    from device_runtime.profiles import ProfileError, shipped

    if options.emulated or options.memory or options.uplink or options.downlink or options.slow != 1:
        raise ProfileError(
            "--board is a complete profile: omit --as, --slow, --memory, --uplink and --downlink"
        )
    return shipped(options.board)


def _added(candidate: Candidate, load: Workload, profile: DeviceProfile) -> Cost | None:
    """The part of a candidate's cost that is for class statistics; None if it has no cost."""
    from device_runtime.profiles.cost import with_measured_memory

    whole = candidate.cost
    if whole is None:
        return None
    plain = candidate.strategy.cost(with_measured_memory(load, profile.speed), profile)
    names = [field.name for field in fields(plain)]
    return replace(plain, **{name: getattr(whole, name) - getattr(plain, name) for name in names})


def _workload(options: argparse.Namespace, bundle: Bundle) -> Workload:
    from device_runtime.models import data as local_data
    from device_runtime.strategies.training.workload import workload

    manifest, labels = bundle.manifest, len(bundle.manifest.labels)
    if options.data:
        return workload(manifest, local_data.load(options.data, manifest, bundle.texts).class_counts(labels))
    each, rest = divmod(options.samples or DRAWN_SAMPLES, labels)
    return workload(manifest, tuple(each + (label < rest) for label in range(labels)))


def _row(plan: UpdateChoice, candidate: Candidate) -> ExplainRow:
    from device_runtime.strategies.interface import capabilities

    is_chosen = candidate is plan.chosen
    fits = "chosen: the richest that fits" if is_chosen else "fits, but poorer than the chosen one"
    why = "; ".join(candidate.misfits or filter(None, (fits, candidate.part)))
    strategy = candidate.strategy
    return ExplainRow(
        candidate.label,
        candidate.cost,
        is_chosen,
        why,
        reveals=strategy.traits.reveals or strategy.about.sends,
        masked="cannot be masked"
        if capabilities.unsummable_reason(strategy)
        else "the sum of several devices",
    )


def _cells(row: ExplainRow, statistics: bool) -> tuple[str, ...]:
    mark = "->" if row.taken else ""
    if row.cost is None:
        return (mark, row.kind, *[""] * (len(HEADERS) - 3 + statistics * len(ADDED)), row.why)
    cost, more = row.cost, row.statistics
    added = (f"{more.seconds:.3f}", f"{more.bytes_up / 1e3:.2f}", f"{more.energy_j:.3f}") if more else ()
    return (
        mark,
        row.kind,
        f"{cost.seconds:.2f}",
        f"{cost.peak_memory_bytes / 1e6:.0f}",
        f"{cost.bytes_up / 1e3:.1f}",
        f"{cost.bytes_down / 1e3:.1f}",
        f"{cost.energy_j:.1f}",
        *added,
        row.why,
    )


def _revealed(rows: Sequence[ExplainRow]) -> str:
    """What the aggregator learns by each kind: one line for all its forms."""
    from tabulate import tabulate

    lines = {row.kind.split(" ")[0]: (row.reveals, row.masked) for row in rows}
    table = tabulate(
        [(kind, *line) for kind, line in lines.items()], headers=("it reveals", "in the clear", "masked")
    )
    return f"\n{table}\n{BESIDE}"


def _masks(options: argparse.Namespace) -> Masks | None:
    """The masks of the round that is planned for; None without --mask-helpers."""
    if not options.mask_helpers:
        return None
    from device_runtime.broker.wire.messages import Masks
    from device_runtime.strategies.masking.seeds import helper_key

    keys = tuple(helper_key(text) for text in listed(options.mask_helpers))
    return Masks(helpers=keys, min_group=2, capacity=64, most_weight=1)
