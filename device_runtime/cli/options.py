"""Options that several of the device's commands share."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path

from device_runtime.client.energy import AUTO as AUTO_METER
from device_runtime.client.energy import MODELLED, WISHES, Found, find
from device_runtime.client.training.engine_guard import Pretence
from device_runtime.models.bundles.manifest import AUTO, ENGINES, PRECISIONS, EngineWish


def add_connection(parser: argparse.ArgumentParser, broker: str) -> None:
    """The broker's URL (`broker` is the name of that argument), who we are there, TLS files."""
    add = parser.add_argument
    text = "Connect to this broker: mqtts://user:password@host, wss://... (default: as enrolled)."
    if broker.startswith("-"):
        add(broker, metavar="URL", help=text)
    else:
        add(broker, nargs="?", metavar="URL", help=text)
    add("--name", help="Name this device (default: as enrolled, the user of the URL, or the host's name).")
    add("--state", type=Path, help="Keep the enrolment, the outbox, bundles and measurements in this folder.")
    add("--ca", type=Path, help="Trust this certificate authority of the broker (PEM).")
    add("--cert", type=Path, help="Show this certificate of the device to the broker (PEM).")
    add("--key", type=Path, help="Use this private key of the device (PEM).")
    add("--insecure", action="store_true", help="Allow mqtt:// without TLS over a network.")


def add_pretence(parser: argparse.ArgumentParser) -> None:
    """`--as`, `--slow`, `--memory`, `--uplink`."""
    parser.add_argument(
        "--as",
        dest="pretend",
        metavar="DEVICE",
        help="Pretend to be another device, such as pi-4; a wrong name lists all.",
    )
    parser.add_argument(
        "--slow", type=positive, default=1.0, metavar="N", help="Be N times slower still, with --as."
    )
    parser.add_argument(
        "--memory",
        type=positive,
        metavar="MB",
        help="Use at most this much memory in all (peak of the process).",
    )
    parser.add_argument(
        "--uplink", type=positive, metavar="BYTES_PER_S", help="Narrow the link upwards, with --as."
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--engine`, `--precision`, `--threads`, `--device`."""
    add = parser.add_argument
    add(
        "--engine",
        choices=(AUTO, *ENGINES),
        default=AUTO,
        help="Run the bundle with this engine (default: auto).",
    )
    add(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="Compute forward passes in this precision, if the bundle has it.",
    )
    add("--threads", type=count, default=1, help="Train with this many threads (default: 1).")
    add(
        "--device",
        default="cpu",
        help="Train on cpu or, with --engine torch, on cuda or cuda:N (default: cpu).",
    )


def add_meter(parser: argparse.ArgumentParser) -> None:
    """`--meter`."""
    parser.add_argument(
        "--meter",
        default=AUTO_METER,
        metavar="METER",
        help=f"Measure energy by one of: {', '.join(WISHES)} (default: auto, the best that is here).",
    )


def meter(options: argparse.Namespace) -> Found:
    """What tells the energy. Raises MeterError."""
    return find(meter_wish(options))


def meter_wish(options: argparse.Namespace) -> str:
    """The name of what is to tell the energy; of a pretended device it is modelled."""
    return MODELLED if options.pretend else str(options.meter)


def engine_wish(options: argparse.Namespace) -> EngineWish:
    return EngineWish(options.engine, options.precision, options.threads, options.device)


def pretence(options: argparse.Namespace) -> Pretence | None:
    """The device to pretend to be, if any. Raises ProfileError for one that is not shipped."""
    if options.pretend is None:
        return None
    return Pretence.of(options.pretend, options.slow, options.uplink)


def memory_bytes(options: argparse.Namespace) -> int | None:
    return None if options.memory is None else int(options.memory * 1e6)


def positive(text: str) -> float:
    """An argument that is a finite number of more than 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of more than 0")
    return value


def count(text: str) -> int:
    """An argument that is a whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)
