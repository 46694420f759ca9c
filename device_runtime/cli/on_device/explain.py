"""`device-runtime explain`: shows which update this device would choose, what each costs, and why."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from contextlib import ExitStack
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
    from device_runtime.broker.wire.messages import Masks
    from device_runtime.device.selection.choose import Candidate, UpdateChoice
    from device_runtime.models.bundles.bundle import Bundle
    from device_runtime.profiles import Cost, DeviceProfile, Workload

    from .planned_task import PlannedTask

log = logging.getLogger(__name__)

USUAL = "digits-wrn-10-1"


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
    parser.add_argument(
        "--bundle",
        help="Plan for the task of this bundle (default: the task that this device is enrolled for, else the "
        "digits).",
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        metavar="S",
        help="Plan for a round of this many seconds (default: as the task has it, else 60).",
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
    parser.add_argument("--name", help="Plan for the task that the device of this name is enrolled for.")
    parser.add_argument("--state", type=Path, help="Plan for the device of this folder, and by its rules.")
    add_format(parser)
    add_engine(parser)
    add_emulation(parser)


def run(options: argparse.Namespace) -> int:
    if options.data and options.samples:
        raise DataError("--data has its own number of samples: omit --samples")
    load_plugins(options)
    with ExitStack() as stack:
        bundle, planned = _task(options, stack)
        _explain(options, bundle, planned)
    return 0


def _explain(options: argparse.Namespace, bundle: Bundle, planned: PlannedTask) -> None:
    """Print what each kind of the task would cost here, and which is chosen."""
    from tabulate import tabulate

    from device_runtime.device.doctor.installation import rules

    from . import profile as profile_command

    profile = _shipped(options) if options.board else profile_command.measure_profile(bundle, options)
    load = _workload(options, bundle)
    plan = _plan(options, planned, profile, load)
    rows = [_row(plan, candidate) for candidate in plan.candidates]
    if options.statistics:
        added = [_added(candidate, load, profile) for candidate in plan.candidates]
        rows = [replace(row, statistics=more) for row, more in zip(rows, added, strict=True)]
    if options.format == "json":
        print(as_json(rows))
        return
    guess = "" if options.data or options.samples else " (assumed; yours: --data PATH)"
    print(f"{profile.name}, {load.samples} samples{guess}, {planned.name}, deadline {planned.deadline_s:g} s")
    if planned.text:
        print(planned.text)
    heads = (*HEADERS[:-1], *(ADDED if options.statistics else ()), HEADERS[-1])
    print(tabulate([_cells(row, options.statistics) for row in rows], headers=heads, disable_numparse=True))
    print(plan.verdict)
    print(_rest(planned, plan), end="")
    print(_counted(profile, plan))
    print(_revealed(rows))
    if not (options.emulated or options.board):
        try:
            device_rules = list(rules(options.state or state_folder()))
        except NoHome:  # nor has any device a folder there
            device_rules = []
        for finding in device_rules:
            print(f"{finding.what}: {finding.found}")


def _task(options: argparse.Namespace, stack: ExitStack) -> tuple[Bundle, PlannedTask]:
    """The task of the options, or else the one that the device is enrolled for, with its bundle.

    What was fetched for it is there until `stack` is closed. Raises BundleError, KindError.
    """
    from device_runtime.broker.errors import BrokerError
    from device_runtime.device.connection.connecting import connect, is_enrolled
    from device_runtime.device.delivery.offered_task import NotFetched
    from device_runtime.models.bundles.bundle import Bundle, find_bundle
    from device_runtime.models.errors import ModelError

    from .planned_task import EnrolledDevice, PlannedTask, TaskOptions, offered

    own = not (options.bundle or options.kinds or options.codec or options.board or options.head != "auto")
    if own and is_enrolled(options):
        try:
            task = stack.enter_context(offered(connect(EnrolledDevice(options.name, options.state))))
            planned = PlannedTask.of_offer(task)
            return task.bundle, replace(planned, deadline_s=options.deadline or planned.deadline_s)
        except (BrokerError, NotFetched, ModelError) as error:
            log.warning("the task that this device is enrolled for is not known: %s", error)
    name = options.bundle or USUAL
    bundle = Bundle.open(find_bundle(name))
    of_task = TaskOptions(name, options.kinds or "", options.codec, options.head)
    planned = PlannedTask.of_options(of_task, bundle)
    return bundle, replace(planned, deadline_s=options.deadline or planned.deadline_s)


def _counted(profile: DeviceProfile, plan: UpdateChoice) -> str:
    """What is in the figures of the table, a line each."""
    link, costs = profile.bandwidth, [candidate.cost for candidate in plan.candidates if candidate.cost]
    shares = [cost.seconds - cost.compute_s for cost in costs]
    transfer = f"{min(shares):.2f} to {max(shares):.2f} s" if shares else "nothing"
    return (
        f"Seconds are those of a first round: computing, and {transfer} of transfer by a link of "
        f"{link.up / 1e6:.2g} MB/s up and {link.down / 1e6:.2g} down ({link.source}).\n"
        "kB up count the update, its class statistics and the message around them, before TLS; kB down the "
        "whole model.\nPeak MB are of the whole process. Joules are modelled: load while computing, rest "
        "while transferring.\n`measure` runs the same updates here and puts what it measures beside the "
        "computing, the peak and the bytes."
    )


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

    kinds, manifests = planned.kinds, planned.manifests
    if options.state and not options.state.is_dir():
        raise NoDevice(f"no device is in {options.state}")
    policy = work_gate.kept_policy(options.state) if options.state else None
    allowed, masks = policy.allowed if policy else ANYTHING, _masks(options)
    passed_over = allowed.refuses_masks(masks)
    return choose(
        profile,
        kinds,
        {name: workload(manifest, load.class_counts) for name, manifest in manifests.items()},
        planned.deadline_s,
        lambda form: passed_over or allowed.bars(form),
        upload_terms=upload_terms(masks, kinds, manifests.__getitem__) if masks else None,
    )


def _rest(planned: PlannedTask, plan: UpdateChoice) -> str:
    """A line on when the device would rest; empty if it never does."""
    from device_runtime.device.selection.resting import least_percent

    least, of_classes = least_percent(plan), not planned.manifests[""].target.why_not_by_class
    if least == 100 or not of_classes or not planned.closed_form:
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
