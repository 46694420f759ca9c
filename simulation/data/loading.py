"""From a spec to samples."""

from __future__ import annotations

from importlib import import_module

from .dataset import DataSet, checked, limited
from .sources import SOURCES
from .spec import DataSpec


def load(spec: DataSpec, seed: int) -> DataSet:
    """The samples that `spec` names; `seed` draws a split where there is none, and what max_* keep.

    Raises DataSetError: what, where, what was expected.
    """
    module = import_module(f".{SOURCES[spec.source]}", __package__)
    data: DataSet = module.load(spec, seed)
    return limited(checked(data, spec.path or spec.source), spec, seed)
