"""The loss as a function of parameters: read where they lie, or as constants of a session for each value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .engine import Inputs, Labels
from .freed_memory import give_back
from .manifest import Graph, Manifest
from .onnx_bound import Bound
from .onnx_constants import convolves, with_constants
from .onnx_session import Loaded, SessionSettings, load_session
from .tensors import Flat

FLOPS_A_TENSOR = 10_000_000
"""Of the forward passes of a loss, for each tensor of the model, from which a session for each loss pays.

Making one takes 0.1 ms a tensor; convolutions whose kernels are inputs lose 0.5 to 4 ms per 100 million
operations (x86-64, ONNX Runtime 1.19 and 1.31: SqueezeNet the least, the depthwise ones of MobileNetV2 the
most).
"""


class OnnxProbe(Bound):
    """See `engine.LossProbe`. One session, which reads the parameters where they lie."""

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


class RemadeProbe:
    """See `engine.LossProbe`. Of many samples, every loss is that of a session made for it.

    A kernel that is an input is convolved without the layout that ONNX Runtime has for the processor, and
    nothing is folded into it. With parameters as constants a pass is one of inference; what a session takes
    to make is shared by the passes of all samples. Few samples go through a session with inputs, which is
    made at the first; which of the two depends on their number alone, so that equal calls give equal bits.
    """

    def __init__(
        self, manifest: Manifest, rows: int, source: Source, params: Flat, settings: SessionSettings
    ) -> None:
        self.params = params
        self._manifest, self._rows, self._source, self._settings = manifest, rows, source, settings
        self._constant = source.with_constants(params)
        self._with_inputs: OnnxProbe | None = None

    def loss(self, x: Inputs, y: Labels) -> float:
        """Mean cross-entropy in nats: of each sample in float32, summed in float64 in the given order."""
        if len(x) * self._source.graph.flops >= FLOPS_A_TENSOR * len(self._constant.frozen):
            return self._with_constants(x, y)
        if self._with_inputs is None:
            self._with_inputs = self._bound(self._source, self._settings)
        return self._with_inputs.loss(x, y)

    def _with_constants(self, x: Inputs, y: Labels) -> float:
        try:
            return self._bound(self._constant, replace(self._settings, quick=True)).loss(x, y)
        finally:
            give_back()  # what sessions leave behind one another would add up to a fifth of the process

    def _bound(self, source: Source, settings: SessionSettings) -> OnnxProbe:
        return OnnxProbe(self._manifest, self._rows, source.open(settings), self.params)
