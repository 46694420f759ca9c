"""The loss as a function of parameters that are read where they lie."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Graph, Manifest
from device_runtime.models.bundles.tensors import Flat

from .base import Inputs, Labels
from .onnx_bound import Bound
from .onnx_constants import convolves, with_constants
from .onnx_session import Loaded, SessionSettings, load_session


class OnnxProbe(Bound):
    """See `engines.base.LossProbe`. One session, which reads the parameters where they lie."""

    def loss(self, x: Inputs, y: Labels) -> float:
        """Mean cross-entropy in nats: of each sample in float32, summed in float64 in the given order."""
        losses = np.empty(y.shape, np.float32)
        for part in self._batches_of(x, y):
            self._bind_output("losses", losses[part])
            self._loaded.run_bound(self._binding, part.stop - part.start)
        return float(losses.mean(dtype=np.float64))


@dataclass(frozen=True)
class Source:
    """A graph that takes parameters as inputs, and the values of its initialisers."""

    name: str
    graph: Graph
    onnx: bytes
    frozen: Mapping[str, NDArray[Any]]

    def suits_constants(self, manifest: Manifest) -> bool:
        """Whether it may run faster with its parameters as constants: more than a head below convolutions."""
        head = {manifest.head.weight, manifest.head.bias}
        return not head.issuperset(self.graph.trainable) and convolves(self.onnx)

    def open(self, settings: SessionSettings) -> Loaded:
        """A session that takes the parameters as inputs. Raises EngineError, and what the watch raises."""
        return load_session(self.name, self.graph, self.onnx, self.frozen, settings)

    def with_constants(self, params: Flat) -> "Source":
        """The same with the parameters as initialisers, which share the memory of `params`."""
        constant = msgspec.structs.replace(
            self.graph, trainable=(), frozen=(*self.graph.frozen, *params.views)
        )
        frozen = {**self.frozen, **params.views}
        return replace(self, graph=constant, onnx=with_constants(self.onnx, params.specs), frozen=frozen)


def fewer_by(held_bytes: int, graph: Graph, rows: int) -> int:
    """Samples of one run whose activations are so much smaller than those of `rows`; at least half of them.

    What is held besides then costs no memory.
    """
    return max(rows - -(-held_bytes // max(1, graph.bytes_per_sample)), -(-rows // 2))
