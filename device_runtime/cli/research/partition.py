"""`device-runtime partition`: shows how a data set is divided among devices, without a simulation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tabulate import tabulate

from device_runtime.cli.options import count
from device_runtime.content import explained
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.export.network_factory import settings
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.data import DataSet, DataSpec, divide, divide_fleet, load
from device_runtime.simulation.data.spec import OF_BUNDLES
from device_runtime.simulation.errors import DataSetError, SimulationError
from device_runtime.simulation.partition.figures import PartitionShape, by_group, draw, shape, table
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.user_account import expanded

from .simulate_options import add_data, data_values

ERRORS = (SimulationError,)

DEVICES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("scenario", nargs="?", help="Divide the data of this scenario, a file or a preset (default: digits).")
    add(
        "--devices",
        type=count,
        help=f"Divide among this many devices (default: the scenario's, or {DEVICES}).",
    )
    add("--seed", type=int, default=0, help="Draw by this seed (default: 0).")
    add_data(parser)
    add("--bundle", default="", help="Read tables, texts and arrays as a device of this bundle does.")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Set another field of the [data] table, such as samples_per_client=50.",
    )
    add(
        "--out",
        type=Path,
        default=Path("partition.png"),
        help="Draw the picture into this file (default: partition.png).",
    )
    add(
        "--vectors-out",
        type=Path,
        metavar="FILE.npy",
        help="Write the vectors of a text's vocabulary to this file.",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the table and writes the picture. Raises DataSetError, ScenarioError."""
    spec, devices, fleet, bundle = request(options)
    _check_picture(options.out)
    # files are read as on a device of the bundle, and groups name its classes by number
    needs_bundle = bundle and (options.bundle or spec.source in OF_BUNDLES or spec.groups)
    data = load(spec, options.seed, Bundle.open(find_bundle(bundle)) if needs_bundle else None)
    drawn = fleet.draw(devices, options.seed) if fleet is not None and spec.groups else None
    parts = divide(data, spec, devices, options.seed) if drawn is None else divide_fleet(data, spec, drawn)
    groups = [] if drawn is None else [drawn.group(device) for device in range(devices)]
    about = shape(data.keys, parts, len(data.key_names), groups)
    print(description(data, about))
    print()
    print(tabulate(table(about), ("", "least", "median", "most", "mean"), disable_numparse=True))
    if about.groups:
        heads = ("group of the fleet", "clients", "samples", "classes")
        print(f"\n{tabulate(by_group(about, data.key_names), heads, disable_numparse=True)}")
    title = f"{spec.source} divided among {devices:,} clients: {partition_text(spec)}"
    _written(options.out, lambda path: draw(about, data.key_names, title, path))
    print(f"\npicture in {options.out}")
    if options.vectors_out is not None:
        _save_vectors(data, spec, options.vectors_out)
    return 0


def request(options: argparse.Namespace) -> tuple[DataSpec, int, FleetSpec | None, str]:
    """The scenario's data, devices, fleet and bundle, overridden by the command line.

    Raises DataSetError, ScenarioError, ExportError.
    """
    fields = data_values(options) | settings(options.set)
    if options.scenario is not None:
        scenario = scenarios.load(options.scenario, {"data": fields})
        return (
            scenario.data,
            options.devices or scenario.devices,
            scenario.fleet,
            options.bundle or scenario.task.bundle,
        )
    try:
        return msgspec.convert(fields, DataSpec), options.devices or DEVICES, None, options.bundle
    except msgspec.ValidationError as error:
        raise DataSetError(explained(error, DataSpec, "data")) from None


def partition_text(spec: DataSpec) -> str:
    """The partition in words."""
    text = {
        "dirichlet": f"Dirichlet({spec.alpha:g})",
        "dirichlet-by-class": f"each class by Dirichlet({spec.alpha:g})",
        "dirichlet-fedml": f"each class by Dirichlet({spec.alpha:g}), as FedML does",
        "shards": f"{spec.classes_per_client} shards each",
        "classes": f"{spec.classes_per_client} classes each",
        "natural": "natural groups",
        "iid": "IID",
    }[spec.partition]
    if spec.quantity_sigma:
        text += f", log-normal sizes ({spec.quantity_sigma:g})"
    if spec.quantity_alpha:
        text += f", sizes by Dirichlet({spec.quantity_alpha:g})"
    if spec.groups:
        text += ", within groups of the fleet"
    return text


def description(data: DataSet, about: PartitionShape) -> str:
    """The size of the data set, and how much of it is given to clients."""
    form = f"{data.train_x.dtype} {'x'.join(str(size) for size in data.train_x.shape[1:])}"
    lines = [
        f"{about.samples:,} training samples and {len(data.test_y):,} for evaluation, {form}, "
        f"{len(data.labels)} {'columns of targets' if data.has_columns else 'classes'}"
    ]
    if data.groups is not None:
        lines.append(f"{len(np.unique(data.groups[data.groups >= 0])):,} groups (writers, speakers, persons)")
    lines += data.notes
    if data.in_tenths:
        lines.append(f"divided, and counted as classes, by tenths of {data.labels[0]}")
    if data.vocabulary:
        lines.append(f"{len(data.vocabulary):,} token ids")
    total = int(about.sizes.sum())
    lines.append(f"{total:,} given to {len(about.sizes):,} clients")
    return "\n".join(lines)


def _save_vectors(data: DataSet, spec: DataSpec, out: Path) -> None:
    from device_runtime.simulation.data.text import matrix

    if not (spec.vectors and data.vocabulary):
        raise DataSetError("--vectors-out is for text with --set vectors=FILE of GloVe")
    vectors = matrix(data.vocabulary, expanded(spec.vectors))
    _written(out, lambda path: np.save(path, vectors, allow_pickle=False))
    print(f"float32 {vectors.shape[0]} x {vectors.shape[1]} in {out}")


def _check_picture(path: Path) -> None:
    """Raise DataSetError, before anything is computed, if the PNG cannot be written."""
    if path.suffix != ".png":
        raise DataSetError(f"--out {path}: the picture is a PNG, expected a name that ends in .png")
    if not path.parent.is_dir():
        raise DataSetError(f"{path} cannot be written: there is no folder {path.parent}")


def _written(path: Path, write: Any) -> None:
    try:
        write(path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DataSetError(f"{path} cannot be written: {why}") from None
