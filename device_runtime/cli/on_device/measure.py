"""`device-runtime measure`: measures each kind of update on this device, and shows what was predicted."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import logging
import os
from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.cli.options import (
    DRAWN_SAMPLES,
    add_emulation,
    add_engine,
    add_format,
    add_meter,
    as_json,
    count,
    engine_settings,
    listed,
    memory_bytes,
    meter,
    positive,
)
from device_runtime.models.errors import DataError
from device_runtime.strategies.errors import KindError

from . import profile as profile_command

if TYPE_CHECKING:
    from device_runtime.broker.wire.messages import Kind
    from device_runtime.device.measurement.measure_one import MeasuredDevice, MeasuredFigures, MeasureOrder
    from device_runtime.device.measurement.measurement import MeasurementRow
    from device_runtime.models.bundles.bundle import Bundle
    from device_runtime.profiles import Speed


log = logging.getLogger(__name__)

PICTURES = (".png", ".svg")
COUNTED = """\
Seconds and joules are of computing, without the transfer that `explain` adds. kB up count the update, its
class statistics and the message around them, as `explain` does; kB down are predicted. Peak MB are of the
whole process, which holds less at rest than that of `explain`."""
"""What is in the figures of the table."""


@dataclass(frozen=True)
class MeasureReport:
    """The report, as --format json prints it.

    `idle_w`: the power at rest by the meter; nan (null in JSON) without a meter, or if not measured.
    """

    device: str
    bundle: str
    meter: str
    energy: str
    idle_w: float
    kinds: tuple[MeasurementRow, ...]
    runs: tuple[MeasuredFigures, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--bundle",
        default="digits-wrn-10-1",
        help="Measure with this bundle: a folder, a zip, or a shipped one.",
    )
    add("--data", type=Path, help="Train on this local data; or on drawn samples.")
    add(
        "--samples",
        type=count,
        metavar="N",
        help=f"Draw this many samples, evenly of every class (default: {DRAWN_SAMPLES}).",
    )
    add("--kinds", help="Measure these kinds, separated by commas (default: as `kinds` says).")
    add("--codec", default="", metavar="WORD", help="Send updates by this codec, such as delta+int8+deflate.")
    add(
        "--repeats",
        type=count,
        default=3,
        help="Run each kind this often, one kind after the other (default: 3).",
    )
    add(
        "--idle",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="Measure this many seconds at rest first (default: 5); 0 leaves it out, and what is above idle.",
    )
    add("--csv", type=Path, metavar="FILE", help="Write every run to this file.")
    add("--plot", type=Path, metavar="FILE", help="Draw it into this file, .png or .svg.")
    add_format(parser)
    add_engine(parser)
    add_meter(parser)
    add_emulation(parser)


def _seconds(text: str) -> float:
    return 0.0 if text == "0" else positive(text)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if no kind could be measured."""
    from device_runtime.device.measurement.measurement import idle_watts, interleaved, lines, plot, row
    from device_runtime.models import data as local_data
    from device_runtime.models.bundles.bundle import Bundle, find_bundle
    from device_runtime.profiles.device import Time

    bundle, names = Bundle.open(find_bundle(options.bundle)), _kinds(options)
    if options.data:  # what is wrong with them is told before anything is measured
        local_data.load(options.data, bundle.manifest, bundle.texts)
    if options.plot and importlib.util.find_spec("matplotlib") is None:  # told before anything is measured
        raise ModuleNotFoundError("no plot without matplotlib", name="matplotlib")
    gauge = meter(options)
    profile = profile_command.measure_profile(bundle, options)
    idle_w = idle_watts(gauge.meter, options.idle, Time()) if gauge.meter and options.idle else nan
    device = _device(options, profile.speed, idle_w)
    runs = interleaved(
        [_order(options, kind, device) for kind in _offered(options, names, bundle)],
        options.repeats,
        lambda order, run: log.info("%s: %s", order.kind, run.why or f"{run.seconds:.3f} s"),
    )
    report = MeasureReport(
        profile.name,
        bundle.manifest.name,
        gauge.source,
        gauge.description(profile.power),
        idle_w,
        tuple(row(some) for some in runs.values()),
        tuple(trial for some in zip(*runs.values(), strict=True) for trial in some),
    )
    print(as_json(report) if options.format == "json" else _text(report))
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines(report.runs))
    if options.plot:
        plot(report.kinds, options.plot, f"{report.device}, {report.bundle}")
    return 0 if any(kind.runs for kind in report.kinds) else 1


def _kinds(options: argparse.Namespace) -> list[str]:
    """The kinds to measure; checks all options before anything is measured. Raises KindError, DataError."""
    from device_runtime.strategies.kinds import registry

    names = list(dict.fromkeys(listed(options.kinds))) if options.kinds else list(registry.DEFAULT_KINDS)
    for name in names:
        registry.make(name, registry.codec_setting(name, options.codec))
    if options.data and options.samples:
        raise DataError("--data has its own number of samples: omit --samples")
    if options.plot and options.plot.suffix not in PICTURES:
        raise DataError(f"--plot {options.plot}: expected a name that ends in {' or '.join(PICTURES)}")
    for path in (options.csv, options.plot):
        if path and not path.absolute().parent.is_dir():
            raise DataError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
        if path and path.is_dir():
            raise DataError(f"{path} cannot be written: it is a folder")
        if path and not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise DataError(f"{path} cannot be written: permission denied")
    return names


def _device(options: argparse.Namespace, speed: Speed, idle_w: float) -> MeasuredDevice:
    from device_runtime.device.measurement.measure_one import EmulatedDevice, MeasuredDevice
    from device_runtime.models.bundles.manifest import ARENA_FACTOR

    emulated = None
    if options.emulated:
        emulated = EmulatedDevice(options.emulated, options.slow, options.uplink, options.downlink)
    settings = replace(engine_settings(options), run_bytes=speed.run_bytes // ARENA_FACTOR)
    return MeasuredDevice(speed, settings, memory_bytes(options), emulated, options.meter, idle_w)


def _offered(options: argparse.Namespace, names: list[str], bundle: Bundle) -> list[Kind]:
    """The kinds as the task of the options offers them, which `explain` plans for: with class statistics.

    One that the task leaves out, as it cannot be done, is measured by itself, and says why it cannot.
    """
    from device_runtime.strategies.kinds import registry

    from .planned_task import PlannedTask, TaskOptions

    try:
        planned = PlannedTask.of_options(
            TaskOptions(options.bundle, options.kinds or "", options.codec), bundle
        )
        by_name = {kind.name: kind for kind in reversed(planned.kinds)}
    except KindError as error:
        log.info("measured without a task: %s", error)
        by_name = {}
    alone = {name: registry.make(name, registry.codec_setting(name, options.codec)) for name in names}
    return [registry.write(by_name.get(name, alone[name])) for name in names]


def _order(options: argparse.Namespace, kind: Kind, device: MeasuredDevice) -> MeasureOrder:
    from device_runtime.device.measurement.measure_one import MeasureOrder

    data = str(options.data.absolute()) if options.data else ""
    return MeasureOrder(options.bundle, kind, data, options.samples or DRAWN_SAMPLES, device)


def _text(report: MeasureReport) -> str:
    from tabulate import tabulate

    from device_runtime.device.measurement.measurement import HEADERS, cells

    kinds = [kind for kind in report.kinds if kind.runs]
    lines = [f"{report.device}, {report.bundle}; energy: {report.meter}, {report.energy}"]
    if isfinite(report.idle_w):
        lines.append(f"at rest {report.idle_w:.2f} W")
    if kinds:
        lines.append(tabulate([cells(kind) for kind in kinds], headers=HEADERS, disable_numparse=True))
    lines += [f"{kind.kind}: {kind.why}" for kind in report.kinds if kind.why]
    runs = max((kind.runs for kind in kinds), default=0)
    if runs > 1:
        lines.append(f"Medians of {runs} runs ± half the range.")
    if kinds:
        lines.append(COUNTED)
    return "\n".join(lines)
