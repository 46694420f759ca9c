"""What tables share, in shared.toml: data sets in the forms that are looked for, bundles, fleets."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from device_runtime.simulation.errors import ScenarioError
from device_runtime.strategies.kind import Settings

from . import packaged
from .layers import Layer
from .table import SCALES, Scale


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file or folder of the data folder, and what reads it; the first that is there is taken.

    `data` are further fields of a scenario's [data], {folder} in them the data folder. `pixels` enlarges
    images to that side. `difference` says what it is not.
    """

    file: str
    source: str
    scales: tuple[Scale, ...] = SCALES
    data: dict[str, Any] = {}
    pixels: int = 0
    difference: str = ""


class DataEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data set. `export` are the words of `device-runtime export` that say what its samples are, with
    {pixels} for those of the form.

    `smoke` and `cpu` name what stands for it at these scales. No forms: it comes with a package. `get` says
    how to come by it.
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


class Pretrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training in one place, on a data set by its name: so many rounds of full updates with these settings.

    `bundle` names the same network for that data; its weights are what is trained.
    """

    bundle: str
    data: str
    rounds: int
    settings: Settings = {}


class BundleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Words of `device-runtime export`, with {channels} and {classes}.

    `weights` is a file of the data folder; with `pretrain` they are trained, when they are first needed.
    Raises ValueError for both.
    """

    export: str
    weights: str = ""
    pretrain: Pretrain | None = None

    def __post_init__(self) -> None:
        if self.weights and self.pretrain is not None:
            raise ValueError("weights and pretrain are both given, expected one of them")


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    data: dict[str, DataEntry]
    bundles: dict[str, BundleEntry] = {}
    fleets: dict[str, dict[str, Any]] = {}

    def entry(self, name: str, scale: Scale) -> DataEntry:
        """The data set, or what stands for it. Raises ScenarioError."""
        if name not in self.data:
            raise ScenarioError(f"no data set {name!r} in shared.toml; it has {', '.join(self.data)}")
        found = self.data[name]
        instead = {"smoke": found.smoke, "cpu": found.cpu}.get(scale)
        return self.data[instead] if instead else found


@cache
def shared() -> Shared:
    """Read once."""
    return msgspec.convert(packaged.toml("shared.toml"), Shared)
