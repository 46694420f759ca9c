"""A session whose inputs and outputs are arrays of the caller, read and written where they lie."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat

from .arguments import batches, checked_inputs, checked_labels
from .base import Inputs, Labels
from .onnx_session import Loaded, engine_errors, onnxruntime


class Bound:
    """A session whose trainable inputs are slices of a flat buffer, bound once; `rows`: most of a run."""

    def __init__(self, manifest: Manifest, rows: int, loaded: Loaded, params: Flat) -> None:
        self.params = params
        self._manifest, self._rows, self._loaded = manifest, rows, loaded
        with engine_errors(f"graph {loaded.name}"):
            self._binding: Any = loaded.session.io_binding()
        for name in loaded.graph.trainable:
            self._bind_input(name, params.views[name])

    def _bind_input(self, name: str, buffer: np.ndarray[Any, Any]) -> None:
        with engine_errors(f"graph {self._loaded.name}"):
            self._binding.bind_ortvalue_input(name, _ortvalue(buffer))

    def _bind_output(self, name: str, buffer: np.ndarray[Any, Any]) -> None:
        with engine_errors(f"graph {self._loaded.name}"):
            self._binding.bind_ortvalue_output(name, _ortvalue(buffer))

    def _batches_of(self, x: Inputs, y: Labels) -> Iterator[slice]:
        """Binds the samples batch by batch; the caller runs each before it goes on."""
        x = checked_inputs(self._manifest, x)
        labels = checked_labels(self._manifest, x, y)
        for part in batches(len(x), self._rows):
            self._bind_input("x", x[part])
            self._bind_input("y", labels[part])
            yield part


def _ortvalue(array: np.ndarray[Any, Any]) -> Any:
    return onnxruntime().OrtValue.ortvalue_from_numpy(array)
