"""Options of when and how a device may work, and of the file that may hold them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from device_runtime.cli.options import count, listed, positive
from device_runtime.device.delivery.downloads import half_of_room
from device_runtime.device.errors import PolicyError
from device_runtime.device.policy.rules import DIGEST, SHORTEST, AllowList, DayWindow, Policy
from device_runtime.device.policy.work_gate import ProcessPriority
from device_runtime.device.service import device_file

RULES = frozenset(
    {
        *("mains", "battery_above", "below_c", "unmetered", "between", "others_below", "daily_mb"),
        *("disk", "allow_kinds", "allow_bundle", "most_scalars", "smallest_count"),
        *("mask_helpers", "only_masked"),
        *("unknown_allows", "nice", "idle_io", "cores", "cpu_percent"),
    }
)
"""The keys of [policy] in a device file."""


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and an option for each of RULES."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="Read these options from a TOML file, rules in its table [policy].",
    )
    group = parser.add_argument_group("when it may work, and how")
    add = group.add_argument
    add("--mains", action="store_true", help="Work only on mains power.")
    add("--battery-above", type=percent, metavar="PERCENT", help="Work only with at least this charge.")
    add(
        "--below-c",
        type=positive,
        metavar="CELSIUS",
        help="Work only while the hottest sensor is below this.",
    )
    add("--unmetered", action="store_true", help="Work only on a network that is not metered.")
    add(
        "--between", type=window, action="append", metavar="22:00-06:30",
        help="Work only in this part of the day, local time; may be repeated.",
    )  # fmt: skip
    add(
        "--others-below",
        type=percent,
        metavar="PERCENT",
        help="Work only while others use less of the processor's time.",
    )
    add("--daily-mb", type=positive, metavar="MB", help="Send and receive no more than this in a day.")
    add(
        "--disk",
        type=positive,
        metavar="MB",
        help="Use at most this much disk for models (default: half of its room).",
    )
    add("--unknown-allows", action="store_true", help="Ignore a rule about what cannot be measured here.")
    add(
        "--nice",
        type=niceness,
        default=0,
        metavar="N",
        help="Leave the processor to others, from 0 to 19 (default: 0).",
    )
    add("--idle-io", action="store_true", help="Use the disk only when nobody else does.")
    add("--cores", type=count, metavar="N", help="Run on at most this many cores.")
    add(
        "--cpu-percent",
        type=positive,
        metavar="PERCENT",
        help="Use at most this share of one core, with --service.",
    )
    _add_allowed(group)
    add_masks(group)


def _add_allowed(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--allow-kinds",
        type=kinds,
        metavar="KIND,..",
        help="Train and send no other kinds of update than these.",
    )
    add(
        "--allow-bundle",
        type=digest,
        action="append",
        metavar="SHA256",
        help="Fetch and run no other bundle; may be given several times.",
    )
    add("--most-scalars", type=count, metavar="N", help="Send at most N scalars in a zeroth-order round.")
    add(
        "--smallest-count",
        type=count,
        metavar="N",
        help="Send sums and means only of classes with at least N samples, and no single feature maps.",
    )


def add_masks(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--mask-helpers` and `--only-masked`, the owner's rules about masked rounds."""
    add = parser.add_argument
    add(
        "--mask-helpers",
        type=helpers,
        metavar="NAME=KEY,..",
        help="Take part in masked rounds with these mask helpers only; as `mask-helper` prints them.",
    )
    add(
        "--only-masked",
        action="store_true",
        help="Take part only in rounds in which the aggregator sees sums of updates, not single ones.",
    )


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add `--service`."""
    parser.add_argument(
        "--service",
        action="store_true",
        help="Install and start it as a service of this user (as root: of this machine), with these options.",
    )


def add_system(parser: argparse.ArgumentParser) -> None:
    """Add `--system`."""
    parser.add_argument(
        "--system",
        action="store_true",
        help="As --service, for the whole machine and by an account of its own with few rights; needs root.",
    )


def add_device_choice(parser: argparse.ArgumentParser) -> None:
    """Add `--name` and `--state`, which choose a device of this machine."""
    parser.add_argument(
        "--name", help="Choose the device of this name (default: the only one of this machine)."
    )
    parser.add_argument("--state", type=Path, help="Choose the device of this folder (default: by its name).")


def configure(options: argparse.Namespace, add_arguments: Callable[[argparse.ArgumentParser], None]) -> None:
    """Take the options that the command line does not give from the file of --config. Raises PolicyError."""
    if options.config is not None:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        device_file.fill(options, parser, RULES)


def policy(options: argparse.Namespace) -> Policy:
    return Policy(
        mains=options.mains,
        battery_above=options.battery_above,
        below_c=options.below_c,
        unmetered=options.unmetered,
        windows=tuple(options.between or ()),
        others_below=options.others_below,
        daily_bytes=None if options.daily_mb is None else int(1e6 * options.daily_mb),
        unknown_allows=options.unknown_allows,
        allowed=allowed(options),
    )


def allowed(options: argparse.Namespace) -> AllowList:
    """What a task may ask for. Raises PolicyError for an empty list of bundles, which would allow all."""
    if options.allow_bundle == []:
        raise PolicyError("allow_bundle is empty: name a bundle that is allowed, or omit it to allow all")
    names = tuple(options.allow_kinds.split(",")) if options.allow_kinds else ()
    return replace(
        masks_allowed(options),
        kinds=names,
        bundles=tuple(options.allow_bundle or ()),
        most_scalars=options.most_scalars,
        smallest_count=options.smallest_count,
    )


def masks_allowed(options: argparse.Namespace) -> AllowList:
    """The rules of `add_masks` alone."""
    helpers = tuple(options.mask_helpers.split(",")) if options.mask_helpers else ()
    return AllowList(mask_helpers=helpers, only_masked=options.only_masked)


def disk_bytes(options: argparse.Namespace, folder: Path) -> int | None:
    """Bytes of disk that models may take: as --disk says, or half of the free space and their own.

    `folder` is that of the device. None: no limit, as the file system does not say what is free.
    """
    if options.disk is not None:
        return int(options.disk * 1e6)
    return half_of_room(folder)


def process_priority(options: argparse.Namespace) -> ProcessPriority:
    return ProcessPriority(options.nice, options.idle_io, options.cores)


def window(text: str) -> DayWindow:
    """An argument such as 22:00-06:30."""
    try:
        return DayWindow.of(text)
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def kinds(text: str) -> str:
    """An argument of comma-separated names, at least one: an empty list would allow all."""
    names = listed(text)
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names no kind of update: expected such as full,few-shot")
    return ",".join(names)


def helpers(text: str) -> str:
    """An argument of comma-separated mask helpers, NAME=KEY with the key in hex, at least one."""
    from device_runtime.strategies.masking.seeds import helper_key  # imports cryptography

    try:
        keys = [str(helper_key(key)) for key in listed(text)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not keys:
        raise argparse.ArgumentTypeError(f"{text!r} names no mask helper: expected NAME=KEY,..")
    return ",".join(keys)


def digest(text: str) -> str:
    """An argument of hex digits: a sha256, or the beginning of one."""
    digits = text.lower()
    if not DIGEST.fullmatch(digits):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the sha256 of a bundle: expected {SHORTEST} to 64 hex digits"
        )
    return digits


def percent(text: str) -> float:
    """An argument of more than 0 and at most 100."""
    value = positive(text.removesuffix("%"))
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text} is not a percentage, 0 to 100")
    return value


def niceness(text: str) -> int:
    """An argument from 0 to 19; a negative one would take time from others."""
    if not text.isdecimal() or int(text) > 19:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 19")
    return int(text)
