"""From a spec to samples."""

from __future__ import annotations

from importlib import import_module

from device_runtime.models.text.texts import Texts

from .dataset import DataSet, checked, held_out, limited, of_classes
from .sources import OF_TEXTS, SOURCES
from .spec import DataSpec


def load(spec: DataSpec, seed: int, texts: Texts | None = None) -> DataSet:
    """The samples that `spec` names, of its classes; `seed` draws a split where there is none, what max_*
    keep, and what is held out as generic. `texts` of the bundle make the ids of sources of texts.

    Raises DataSetError: what, where, what was expected.
    """
    module = import_module(f".{SOURCES[spec.source]}", __package__)
    written = (texts,) if spec.source in OF_TEXTS else ()
    data: DataSet = module.load(spec, seed, *written)
    where = spec.path or spec.source
    return held_out(limited(of_classes(checked(data, where), spec, where), spec, seed), spec, seed)
