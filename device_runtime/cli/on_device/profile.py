"""`device-runtime profile`: measures what this device can do."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from device_runtime.cli.options import (
    add_emulation,
    add_engine,
    add_format,
    add_meter,
    as_json,
    emulation,
    engine_settings,
    memory_bytes,
    meter,
)
from device_runtime.user_account import provide_temporary_folder

if TYPE_CHECKING:
    from device_runtime.models.bundles.bundle import Bundle
    from device_runtime.models.bundles.manifest import Manifest
    from device_runtime.profiles import DeviceProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", default="digits-wrn-10-1", help="Time this bundle: a folder, a zip, or a shipped one."
    )
    add_format(parser)
    add_engine(parser)
    add_meter(parser)
    add_emulation(parser)


def run(options: argparse.Namespace) -> int:
    import msgspec
    from tabulate import tabulate

    from device_runtime.models.bundles.bundle import Bundle, find_bundle

    bundle = Bundle.open(find_bundle(options.bundle))
    gauge = meter(options)
    profile = measure_profile(bundle, options)
    if options.format == "json":
        report = {
            **msgspec.to_builtins(profile),
            "meter": gauge.source,
            "energy": gauge.description(profile.power),
        }
        print(as_json(report))
    else:
        energy = [
            ("energy", gauge.source, gauge.description(profile.power)),
            *(("", "not", why) for why in gauge.passed),
        ]
        print(tabulate([*rows(profile, bundle.manifest), *energy], tablefmt="plain"))
    return 0


def measure_profile(bundle: Bundle, options: argparse.Namespace) -> DeviceProfile:
    """The profile of this device (or of the one that it emulates) for this bundle, measured now."""
    provide_temporary_folder()
    from device_runtime.device.engine.engine_guard import guard_engine, own_memory
    from device_runtime.device.engine.profiling import clocks, device_speed
    from device_runtime.device.engine.profiling import profile as make_profile
    from device_runtime.models.available_engines.available import engine_choice, open_model

    other = emulation(options)
    watch = guard_engine(other, memory_bytes(options))
    settings = replace(engine_settings(options), run_bytes=watch.run_bytes)
    engine = str(engine_choice(bundle, settings))
    model = open_model(bundle, settings, watch=watch)
    speed = device_speed(model, clocks(time.perf_counter, settings, other), watch)
    model.unload()
    return own_memory(make_profile(speed, engine, other), memory_bytes(options))


def rows(profile: DeviceProfile, manifest: Manifest) -> list[tuple[str, str, str]]:
    """The rows of the table: name, value, and where the value comes from."""
    memory, power, link, speed = profile.memory, profile.power, profile.bandwidth, profile.speed
    engine, _, why = profile.engine.partition(" (")
    table = [
        ("device", profile.name, f"{profile.cores} cores"),
        ("engine", engine, why.removesuffix(")")),
        ("memory", _mb(memory.limit_bytes), f"may be used, of {_mb(memory.total_bytes)}"),
        ("in use", _mb(memory.resident_bytes), "by this process, idle"),
        ("speed", f"{speed.flops_per_s / 1e9:.2f} GFLOP/s", speed.source),
    ]
    for name, seconds in speed.seconds.items():
        flops = manifest.graphs[name].flops
        table.append((f"  {name}", f"{1e3 * seconds:.3f} ms", f"a sample, {flops / 1e6:.2f} MFLOP"))
    table += [
        ("link", f"{link.up / 1e6:.2g} MB/s up, {link.down / 1e6:.2g} down", link.source),
        ("power", f"{power.idle_w:g} W idle, {power.load_w:g} W under load", power.source),
    ]
    if profile.battery:
        state = "plugged in" if profile.battery.plugged else "on battery"
        table.append(("battery", f"{profile.battery.percent:.0f}%", state))
    if profile.temperature_c is not None:
        table.append(("temperature", f"{profile.temperature_c:.0f} °C", "hottest sensor"))
    return table


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
