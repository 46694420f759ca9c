"""From a spec to samples."""

from __future__ import annotations

from importlib import import_module

from .dataset import DataSet, checked, held_out, limited
from .sources import SOURCES
from .spec import DataSpec


def load(spec: DataSpec, seed: int) -> DataSet:
    """The samples that `spec` names; `seed` draws a split where there is none, what max_* keep, and what is
    held out as generic.

    Raises DataSetError: what, where, what was expected.
    """
    module = import_module(f".{SOURCES[spec.source]}", __package__)
    data: DataSet = module.load(spec, seed)
    return held_out(limited(checked(data, spec.path or spec.source), spec, seed), spec, seed)
