"""Options that several commands share."""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import isfinite
from pathlib import Path

from device_runtime.broker.wire.url import PASSWORD_VARIABLE
from device_runtime.device.energy import AUTO as AUTO_METER
from device_runtime.device.energy import METER_OPTIONS, MODELLED, FoundMeter, find_meter
from device_runtime.device.training.settings import PersonalModelSettings
from device_runtime.models.bundles.names import AUTO, ENGINES, PRECISIONS, EngineSettings
from device_runtime.models.data import SampleSource
from device_runtime.models.errors import DataError
from device_runtime.profiles import ProfileError
from device_runtime.profiles.device import Emulation
from device_runtime.tags import check_tags


def add_connection(
    parser: argparse.ArgumentParser,
    broker: str,
    contents: str = "the enrolment, the outbox, bundles and measurements",
) -> None:
    """Add the broker's URL (the argument named `broker`), the device's name and folder, and TLS files.

    contents: what is in the folder.
    """
    add = parser.add_argument
    text = "Connect to this broker: mqtts://user@host, wss://... (default: as enrolled)."
    if broker.startswith("-"):
        add(broker, metavar="URL", help=text)
    else:
        add(broker, nargs="?", metavar="URL", help=text)
    add("--name", help="Name this device (default: as enrolled, the user of the URL, or the host's name).")
    add("--state", type=Path, help=f"Keep {contents} in this folder.")
    add(
        "--password-file", type=Path, metavar="FILE",
        help=f"Read the broker's password from this file (default: from {PASSWORD_VARIABLE}).",
    )  # fmt: skip
    add("--ca", type=Path, help="Trust this certificate authority of the broker (PEM).")
    add("--cert", type=Path, help="Show this certificate of the device to the broker (PEM).")
    add("--key", type=Path, help="Use this private key of the device (PEM).")
    add("--insecure", action="store_true", help="Allow mqtt:// without TLS over a network.")


def add_emulation(parser: argparse.ArgumentParser) -> None:
    """Add `--as`, `--slow`, `--memory`, `--uplink`, `--downlink`."""
    parser.add_argument(
        "--as",
        dest="emulated",
        metavar="DEVICE",
        help="Emulate another device, such as pi-4; a wrong name lists all.",
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
    parser.add_argument(
        "--downlink", type=positive, metavar="BYTES_PER_S", help="Narrow the link downwards, with --as."
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--precision`, `--threads`, `--device`."""
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
    """Add `--meter`."""
    parser.add_argument(
        "--meter",
        default=AUTO_METER,
        metavar="METER",
        help=f"Measure energy by one of: {', '.join(METER_OPTIONS)} (default: auto, the best available).",
    )


def meter(options: argparse.Namespace) -> FoundMeter:
    """The energy meter. Raises MeterError."""
    return find_meter(meter_name(options))


def meter_name(options: argparse.Namespace) -> str:
    """The name of the energy meter; the energy of an emulated device is modelled."""
    return MODELLED if options.emulated else str(options.meter)


def engine_settings(options: argparse.Namespace) -> EngineSettings:
    """The settings of `add_engine`."""
    return EngineSettings(options.engine, options.precision, options.threads, options.device)


def emulation(options: argparse.Namespace) -> Emulation | None:
    """The device to emulate, if any. Raises ProfileError for one whose profile is not shipped."""
    if options.emulated is None:
        if options.slow != 1 or options.uplink or options.downlink:
            raise ProfileError("--slow, --uplink and --downlink need --as DEVICE, which they change")
        return None
    return Emulation.of(options.emulated, options.slow, options.uplink, options.downlink)


def memory_bytes(options: argparse.Namespace) -> int | None:
    """`--memory` in bytes, if given."""
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


def listed(text: str) -> list[str]:
    """The words of a text such as "a, b"; empty ones are left out."""
    return [word.strip() for word in text.split(",") if word.strip()]


def count(text: str) -> int:
    """An argument that is a whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


DATA_HELP = "Read class folders, .npz, .csv, pictures, .wav, .txt or sqlite:FILE?QUERY (docs/data.md)."
"""The help of an argument for local data; `add_data` adds the options that go with it."""


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add `--labels`, the options of a table's columns, and `--held-out`."""
    add = parser.add_argument
    add(
        "--labels",
        type=Path,
        metavar="FILE",
        help="Read the label map from this TOML file (default: labels.toml in the data's folder).",
    )
    for name, help_text in COLUMN_HELP.items():
        add(f"--{name}", default="", metavar="COLUMN", help=help_text)
    add(
        "--held-out", type=share, metavar="SHARE",
        help="Keep this share of the samples to judge the model by (default: 0.1, if 10 or more).",
    )  # fmt: skip


COLUMN_HELP = {
    "label-column": "Take labels from this column of a table: its name, or its number from 0.",
    "text-column": "Take texts from this column of a table: its name, or its number from 0.",
    "feature-columns": "Take features from these columns of a table, separated by commas: names, numbers "
    "from 0, 2-9 for several, or =-id for all but one.",
    "client-column": "Say whose each row of a table is by this column, which is no feature "
    "(default: client, client_id or groups).",
}
"""The options that say what the columns of a table are."""
COLUMN_FLAGS = tuple(name.replace("-", "_") for name in COLUMN_HELP)
"""The same as fields of `SampleSource` and of a scenario's [data]."""


def add_personal(parser: argparse.ArgumentParser) -> None:
    """Add `--keep-model`, `--personal-head`."""
    add = parser.add_argument
    add(
        "--keep-model", action=argparse.BooleanOptionalAction, default=True,
        help="Keep the served model of each round here, for `predict` (default: yes).",
    )  # fmt: skip
    add("--personal-head", action="store_true", help="Train a head of its own, used where it is better here.")


def personal_settings(options: argparse.Namespace) -> PersonalModelSettings:
    """The personal model's settings, as options. Raises DataError if they contradict each other."""
    try:
        return PersonalModelSettings(options.keep_model, options.held_out, options.personal_head)
    except ValueError:
        needs = "a kept model (--keep-model) and held-out samples (--held-out)"
        raise DataError(f"--personal-head needs {needs}") from None


def place(path: Path | str, options: argparse.Namespace) -> SampleSource:
    """The local data at `path`, with the options of `add_data`. Raises DataError when nothing is there."""
    columns = {name: getattr(options, name) for name in COLUMN_FLAGS}
    return replace(SampleSource.of(path), labels=options.labels, **columns).check()


def share(text: str) -> float:
    """An argument from 0 to less than 1."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to less than 1")
    return value


DRAWN_SAMPLES = 200
"""Samples that a command draws or plans for where none are given."""


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format`."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="Print as text or JSON (default: text)."
    )


def as_json(value: object) -> str:
    """The value as JSON for people to read, as `--format json` prints it."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value)).decode()


def add_tags(parser: argparse.ArgumentParser) -> None:
    """Add `--tag`."""
    parser.add_argument(
        "--tag",
        dest="tags",
        type=_tag,
        action="append",
        default=[],
        metavar="TAG",
        help="Say what this device is, by which tasks select: kitchen, or floor=2; may be repeated.",
    )


def _tag(text: str) -> str:
    """An argument that can be a tag."""
    try:
        return check_tags([text])[0]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tags(options: argparse.Namespace) -> tuple[str, ...]:
    """The tags of `--tag`, each once. Raises DataError for too many."""
    try:
        return check_tags(options.tags)
    except ValueError as error:
        raise DataError(f"--tag: {error}") from None


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add the option by which a user's own parts are loaded."""
    parser.add_argument(
        "--kind",
        "--plugin",
        dest="plugins",
        action="append",
        default=[],
        metavar="SOURCE",
        help="Load an own kind of update, term, merge rule or policy: FILE.py:CLASS or MODULE:CLASS; may be "
        "repeated.",
    )


def load_plugins(options: argparse.Namespace) -> None:
    """Load the parts that the option names. Raises KindError."""
    from device_runtime.strategies.kinds import registry

    for source in options.plugins:
        registry.load(source)


def share_plugins(options: argparse.Namespace) -> None:
    """Let the process that trains load the parts that the option names; this one stays small.

    Raises KindError for a file that does not exist.
    """
    from device_runtime.strategies import plugins

    options.plugins = [plugins.absolute(source) for source in options.plugins]  # a service is told these
    for source in options.plugins:
        plugins.share(source)
