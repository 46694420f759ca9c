"""Makes the [data] table of a scenario from a data set, in the form in which it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from device_runtime.simulation.data import DataSpec

from .exporting import BundleSamples, enlarged
from .places import DataFolder


def spec_of(samples: BundleSamples, over: Mapping[str, Any], folder: DataFolder) -> DataSpec:
    """The [data] of a data set's form, with `over` on top; enlarges images unless that was done before.

    Raises DataSetError, msgspec.ValidationError.
    """
    entry, form = samples.entry, samples.form
    if form is None:
        return msgspec.convert({"source": entry.source, **over}, DataSpec)
    raw = {"source": form.source, "path": str(folder.file(form.file)), **_placed(form.data, folder)}
    if form.pixels:
        images = enlarged(msgspec.convert(raw, DataSpec), form.pixels)
        raw = {"source": "npz", "path": str(images)}
    return msgspec.convert({**raw, **over}, DataSpec)


def _placed(data: Mapping[str, Any], folder: DataFolder) -> dict[str, Any]:
    """The settings with {folder} replaced by the data folder."""
    return {
        name: value.replace("{folder}", str(folder.path)) if isinstance(value, str) else value
        for name, value in data.items()
    }
