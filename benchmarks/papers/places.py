"""The data sets, bundles and fleets that tables share (shared.toml), and the folder of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.simulation.errors import DataSetError, ScenarioError
from device_runtime.strategies.interface.kind import Settings

from . import catalogue
from .table import SCALES, Layer, Scale


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One form of a data set: a file or folder of the data folder, and the source that reads it.

    `data` are further fields of a scenario's [data], in which {folder} is the data folder. `pixels`: enlarge
    images to this side. `difference`: how it differs from the paper's data.
    """

    file: str
    source: str
    scales: tuple[Scale, ...] = SCALES
    data: dict[str, Any] = {}
    pixels: int = 0
    difference: str = ""


class DataEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data set, in several forms, of which the first that is there is used.

    `export` are the words of `device-runtime export` that describe its samples, with {pixels} for those of
    the form. `smoke` and `cpu` name the data sets that replace it at these scales. Without forms it comes
    with a package. `get` says how to get it.
    """

    title: str
    classes: int
    export: str
    channels: int = 1
    smoke: str = ""
    cpu: str = ""
    source: str = ""
    get: str = ""
    forms: tuple[Form, ...] = ()
    at: dict[Scale, Layer] = {}


class Pretrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Central pretraining on the data set `data`: `rounds` rounds of full updates with these settings.

    `bundle` names the same network for that data, whose weights are trained.
    """

    bundle: str
    data: str
    rounds: int
    settings: Settings = {}


class BundleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bundle: the words of `device-runtime export`, with {channels} and {classes}.

    `weights` is a file of the data folder; with `pretrain` the weights are trained when they are first
    needed. `tokenizer` is a file of the data folder. `input` are words of `device-runtime export` on how
    samples are scaled, in place of those of the data set. `differences`: how tables with it differ from the
    paper. Raises ValueError if weights are given and pretrained.
    """

    export: str
    differences: tuple[str, ...] = ()
    input: str = ""
    weights: str = ""
    tokenizer: str = ""
    pretrain: Pretrain | None = None

    def __post_init__(self) -> None:
        if self.weights and self.pretrain is not None:
            raise ValueError("weights and pretrain are both given, expected one of them")


class SharedTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of shared.toml, by name."""

    data: dict[str, DataEntry]
    bundles: dict[str, BundleEntry] = {}
    fleets: dict[str, dict[str, Any]] = {}

    def entry(self, name: str, scale: Scale) -> DataEntry:
        """The data set, or the one that replaces it at this scale. Raises ScenarioError."""
        if name not in self.data:
            raise ScenarioError(f"no data set {name!r} in shared.toml; it has {', '.join(self.data)}")
        entry = self.data[name]
        instead = {"smoke": entry.smoke, "cpu": entry.cpu}.get(scale)
        return self.data[instead] if instead else entry


@cache
def shared() -> SharedTables:
    """The contents of shared.toml, read once."""
    return msgspec.convert(catalogue.toml("shared.toml"), SharedTables)


ENV = "DEVICE_RUNTIME_DATA"
"""The environment variable with the data folder."""
BESIDE = Path("../shared/data")


@dataclass(frozen=True)
class DataFolder:
    """The data folder; `path` is None if there is none: tables of packaged data need none."""

    path: Path | None

    def form(self, entry: DataEntry, scale: Scale) -> Form | None:
        """The first form that is there; None for data that comes with a package. Raises DataSetError."""
        if not entry.forms:
            return None
        usable = [form for form in entry.forms if scale in form.scales]
        for form in usable:
            if self.path is not None and (self.path / form.file).exists():
                return form
        raise DataSetError(
            f"no {entry.title} for scale {scale} {self._how()}: expected "
            f"{' or '.join(form.file for form in usable)}; {entry.get}"
        )

    def forms(self, entry: DataEntry, scale: Scale) -> tuple[Form | None, ...]:
        """The form that is there, or else all that could be; (None,) for data that comes with a package."""
        try:
            return (self.form(entry, scale),)
        except DataSetError:
            return tuple(form for form in entry.forms if scale in form.scales)

    def file(self, name: str) -> Path:
        """A file of the folder. Raises DataSetError if it is missing."""
        if self.path is None or not (self.path / name).exists():
            raise DataSetError(f"no {name} {self._how()}")
        return self.path / name

    def has(self, entry: DataEntry, scale: Scale) -> bool:
        try:
            self.form(entry, scale)
        except DataSetError:
            return False
        return True

    def _how(self) -> str:
        return f"in {self.path}" if self.path else f"without a data folder (--data-dir DIR, or ${ENV})"


def data_folder(option: Path | None, environment: Mapping[str, str]) -> DataFolder:
    """The `given` folder, or $DEVICE_RUNTIME_DATA, or ../shared/data if it exists.

    Raises DataSetError for one of the first two that does not exist.
    """
    place = option or (Path(environment[ENV]) if environment.get(ENV) else None)
    if place is None:
        return DataFolder(BESIDE if BESIDE.is_dir() else None)
    if not place.is_dir():
        raise DataSetError(f"{place}: no such folder, for the data of tables")
    return DataFolder(place)
