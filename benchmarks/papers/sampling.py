"""Makes the [data] table of a scenario from a data set, in the form in which it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from device_runtime.simulation.data import DataSpec

from .exporting import BundleSamples, enlarged
from .places import DataFolder, Form


def spec_of(samples: BundleSamples, over: Mapping[str, Any], folder: DataFolder) -> DataSpec:
    """The [data] of a data set's form, with `over` on top; enlarges images unless that was done before.

    Raises DataSetError, msgspec.ValidationError.
    """
    entry, form = samples.entry, samples.form
    if form is None:
        return msgspec.convert({"source": entry.source, **over}, DataSpec)
    raw = _raw(form, str(folder.file(form.file)), str(folder.path))
    if form.pixels:
        images = enlarged(msgspec.convert(raw, DataSpec), form.pixels, entry.channels)
        raw = {"source": "npz", "path": str(images)}
    return msgspec.convert({**raw, **over}, DataSpec)


def named(samples: BundleSamples, over: Mapping[str, Any]) -> DataSpec:
    """The [data] as `spec_of` gives it, with names of files in place of paths; it needs no files.

    Raises msgspec.ValidationError.
    """
    entry, form = samples.entry, samples.form
    if form is None:
        return msgspec.convert({"source": entry.source, **over}, DataSpec)
    enlarged_to = f" at {form.pixels} pixels" if form.pixels else ""
    return msgspec.convert({**_raw(form, f"{form.file}{enlarged_to}", ""), **over}, DataSpec)


def _raw(form: Form, path: str, folder: str) -> dict[str, Any]:
    """The settings of the form, with {folder} replaced by the data folder."""
    further = {
        name: value.replace("{folder}", folder) if isinstance(value, str) else value
        for name, value in form.data.items()
    }
    return {"source": form.source, "path": path, **further}
