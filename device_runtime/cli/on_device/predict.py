"""`device-runtime predict`: predicts labels, values or anomalies with the model that this device keeps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.cli.options import add_engine, add_format, as_json, count, engine_settings
from device_runtime.device.connection.connecting import folder_of
from device_runtime.models.errors import DataError
from device_runtime.user_account import provide_temporary_folder

from .policy_options import add_device_choice

if TYPE_CHECKING:
    from device_runtime.device.personal.predictions import Personal, Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="Classify these: pictures, .wav, .txt, .npy, .npz (x), .csv, .tsv, sqlite:FILE?QUERY.",
    )
    add("--text", action="append", default=[], help="Classify this text itself; may be repeated.")
    add(
        "--top", type=count, default=3, metavar="N", help="Show this many labels of each sample (default: 3)."
    )
    add("--export-onnx", type=Path, metavar="FILE", help="Write the model as one ONNX file for any program.")
    add_format(parser)
    add_device_choice(parser)
    add("--state-dir", dest="state", type=Path, metavar="DIR", help="Do the same as --state.")
    add_engine(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if a file could not be read; the others are classified.

    Raises NothingKept, NoDevice, ModelError.
    """
    from tabulate import tabulate

    from device_runtime.device.personal.predictions import Personal

    folder = folder_of(options)
    provide_temporary_folder(folder)
    model = Personal.open(folder, engine_settings(options))
    if options.export_onnx:
        model.export_onnx(options.export_onnx)
        print(f"{options.export_onnx}: {_summary(model)}", file=sys.stderr)
    elif not options.files and not options.text:
        print(_summary(model), file=sys.stderr if options.format == "json" else sys.stdout)
    predictions: list[Prediction] = []
    failed = False
    requests = [(model.predict, file) for file in options.files] + [
        (model.read, text) for text in options.text
    ]
    for classify, sample in requests:
        try:
            predictions += classify(sample, options.top)
        except DataError as error:
            failed = True
            print(f"device-runtime: {error}", file=sys.stderr)
    if options.format == "json":
        print(as_json(predictions))
    elif predictions:
        print(tabulate([_row(prediction, predictions) for prediction in predictions], tablefmt="plain"))
    return int(failed)


def _row(prediction: Prediction, predictions: list[Prediction]) -> list[str]:
    several = sum(other.file == prediction.file for other in predictions) > 1
    name = f"{prediction.file} [{prediction.number}]" if several else prediction.file
    if prediction.error is not None:
        verdict = "anomaly, above" if prediction.is_anomaly else "normal, up to"
        return [
            name,
            f"error {prediction.error:.4g}",
            "" if prediction.threshold is None else f"{verdict} {prediction.threshold:.4g}",
        ]
    values = [f"{column} {value:.6g}" for column, value in prediction.values.items()]
    return [name, *values, *(f"{guess.label} {guess.probability:.1%}" for guess in prediction.guesses)]


def _summary(model: Personal) -> str:
    """A line about the model that is kept, and its accuracy."""
    from device_runtime.device.connection.offers import task_title
    from device_runtime.device.personal.kept import begun_with

    record, judged = model.record, model.judged
    title = task_title(record.task, record.title)
    text = f"{model.manifest.name}, {title}, {begun_with(record.round)}"
    if judged is None or judged.served is None:
        return f"{text}, not evaluated on this device yet"
    text += f"; {judged.served.description}"
    if judged.own_head is not None:
        text += f"; with an own head {judged.own_head.description}, {'' if judged.kept else 'not '}used"
    return text
