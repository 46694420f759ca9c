"""Options of what is read as local data."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from device_runtime.client.personal.kept import Wish
from device_runtime.models.data import Place
from device_runtime.models.errors import DataError

DATA = "Read class folders, .npz, .csv, pictures, .wav, .txt or sqlite:FILE?QUERY (docs/data-on-device.md)."


def add_data(parser: argparse.ArgumentParser) -> None:
    """`--labels`, `--label-column`, `--text-column`, `--held-out`."""
    add = parser.add_argument
    add(
        "--labels",
        type=Path,
        metavar="FILE",
        help="Read the label map from this TOML file (default: labels.toml in the data's folder).",
    )
    add(
        "--label-column",
        default="",
        metavar="COLUMN",
        help="Take labels from this column of a table: its name, or its number from 0.",
    )
    add(
        "--text-column",
        default="",
        metavar="COLUMN",
        help="Take texts from this column of a table: its name, or its number from 0.",
    )
    add(
        "--held-out", type=share, metavar="SHARE",
        help="Keep this share of the samples to judge the model by (default: 0.1, if 10 or more).",
    )  # fmt: skip


def add_personal(parser: argparse.ArgumentParser) -> None:
    """`--keep-model`, `--personal-head`."""
    add = parser.add_argument
    add(
        "--keep-model", action=argparse.BooleanOptionalAction, default=True,
        help="Keep the served model of each round here, for `predict` (default: yes).",
    )  # fmt: skip
    add("--personal-head", action="store_true", help="Train a head of its own, used where it is better here.")


def wish(options: argparse.Namespace) -> Wish:
    """What the options of `add_data` and `add_personal` say. Raises DataError where they contradict."""
    if options.personal_head and (not options.keep_model or options.held_out == 0):
        raise DataError("--personal-head is of a model that is kept, and chosen on samples that are held out")
    return Wish(options.keep_model, options.held_out, options.personal_head)


def place(given: Path | str, options: argparse.Namespace) -> Place:
    """What `given` names, with the options that `add_data` added. Raises DataError where nothing is there."""
    columns = {"label_column": options.label_column, "text_column": options.text_column}
    return replace(Place.of(given), labels=options.labels, **columns).check()


def share(text: str) -> float:
    """An argument from 0 to less than 1."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to less than 1")
    return value
