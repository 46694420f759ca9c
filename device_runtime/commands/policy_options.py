"""Options of when a device may work, and how it behaves on its machine; and the file that may hold them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from device_runtime import device_file
from device_runtime.errors import PolicyError
from device_runtime.manners import Manners
from device_runtime.policy import Policy, Window

from .options import count, positive

RULES = frozenset(
    {
        *("mains", "battery_above", "below_c", "unmetered", "between", "others_below", "daily_mb"),
        *("unknown_allows", "nice", "idle_io", "cores", "cpu_percent"),
    }
)
"""What stands in [policy] of a device file."""


def add_policy(parser: argparse.ArgumentParser) -> None:
    """`--config`, and all of RULES."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML with these options, rules in [policy]"
    )
    add = parser.add_argument_group("when it may work, and how").add_argument
    add("--mains", action="store_true", help="only on mains power")
    add("--battery-above", type=percent, metavar="PERCENT", help="only with so much charge")
    add("--below-c", type=positive, metavar="CELSIUS", help="only while the hottest sensor is below this")
    add("--unmetered", action="store_true", help="only on a network that is not metered")
    add(
        "--between", type=window, action="append", metavar="22:00-06:30",
        help="only then, local time; may be given several times",
    )  # fmt: skip
    add("--others-below", type=percent, metavar="PERCENT", help="only while others use less processor time")
    add("--daily-mb", type=positive, metavar="MB", help="send and receive no more in a day")
    add("--unknown-allows", action="store_true", help="a rule about what nobody tells here does not count")
    add("--nice", type=niceness, default=0, metavar="N", help="0 to 19: how far behind others (default: 0)")
    add("--idle-io", action="store_true", help="use the disk only when nobody else does")
    add("--cores", type=count, metavar="N", help="run on at most so many cores")
    add("--cpu-percent", type=positive, metavar="PERCENT", help="with --service: of one core, at most")


def add_service(parser: argparse.ArgumentParser) -> None:
    """`--service`."""
    parser.add_argument(
        "--service",
        action="store_true",
        help="install and start it as a service of this user, with these options",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """`--name` and `--state`: which device, of those that are here."""
    parser.add_argument("--name", help="the device's name (default: the only one that is here)")
    parser.add_argument("--state", type=Path, help="its folder (default: by its name)")


def configure(options: argparse.Namespace, add_arguments: Callable[[argparse.ArgumentParser], None]) -> None:
    """Take from the file what the command line does not say. Raises PolicyError."""
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
    )


def manners(options: argparse.Namespace) -> Manners:
    return Manners(options.nice, options.idle_io, options.cores)


def window(text: str) -> Window:
    """An argument such as 22:00-06:30."""
    try:
        return Window.of(text)
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def percent(text: str) -> float:
    """An argument of more than 0 and at most 100."""
    value = positive(text.removesuffix("%"))
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text} is not a percentage, 0 to 100")
    return value


def niceness(text: str) -> int:
    """An argument from 0 to 19: nobody is pushed aside."""
    if not text.isdecimal() or int(text) > 19:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 19")
    return int(text)
