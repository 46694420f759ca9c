"""Loss for zeroth-order training of convolutional networks, with the parameters as constants."""

from collections.abc import Callable
from dataclasses import replace

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat

from .base import Inputs, Labels
from .freed_memory import trim_heap
from .onnx_layout import OptimisedProbe
from .onnx_probe import OnnxProbe, ProbeGraph
from .onnx_session import SessionSettings

FLOPS_A_TENSOR = 1_000_000
"""Above this many FLOPs per tensor of the model, a loss is faster with the parameters as constants.

Convolutions whose kernels are inputs lose 0.5 to 4 ms per 100 million operations (x86-64, ONNX Runtime 1.19
and 1.31: SqueezeNet the least, the depthwise ones of MobileNetV2 the most); writing a tensor takes about 20
microseconds.
"""
REMADE = 10
"""From this multiple of FLOPS_A_TENSOR, a new session for each loss is faster: it takes 0.1 ms a tensor."""


class ConstantProbe:
    """Loss of a graph with convolutions; see `engines.base.LossProbe`.

    If a kernel is an input, ONNX Runtime can neither pre-pack it for the processor nor fuse it. So for enough
    samples, the loss is computed by the graph as optimised for inference, with the parameters written into it
    (`OptimisedProbe`); or, if that graph's layout is not known, by a session made for this loss. For few
    samples, the parameters are inputs of a session. The choice depends on the number of samples alone, so
    that equal calls give equal bits.
    """

    def __init__(
        self,
        manifest: Manifest,
        rows: int,
        source: ProbeGraph,
        params: Flat,
        settings: SessionSettings,
        laid_out: Callable[[str, Callable[[], ProbeGraph], int], OptimisedProbe | None],
    ) -> None:
        self.params = params
        self._manifest, self._rows, self._source, self._settings = manifest, rows, source, settings
        self._laid_out = laid_out
        self._with_inputs: OnnxProbe | None = None

    def loss(self, x: Inputs, y: Labels) -> float:
        """The mean of the bundle's loss: of each sample in float32, summed in float64 in the given order."""
        source = self._source
        work = len(x) * source.graph.flops / (FLOPS_A_TENSOR * (len(source.frozen) + len(self.params.views)))
        if work >= 1:
            laid_out = self._laid_out(source.name, self._constant, self._rows)
            if laid_out is not None:
                return laid_out.loss(source.frozen, self.params.views, x, y)
        if work >= REMADE:
            return self._loss_by_new_session(x, y)
        if self._with_inputs is None:
            self._with_inputs = self._bound(self._source, self._settings)
        return self._with_inputs.loss(x, y)

    def _constant(self) -> ProbeGraph:
        return self._source.with_constants(self.params)

    def _loss_by_new_session(self, x: Inputs, y: Labels) -> float:
        try:
            return self._bound(self._constant(), replace(self._settings, quick=True)).loss(x, y)
        finally:
            trim_heap()  # else the memory that sessions leave adds up to a fifth of the process

    def _bound(self, source: ProbeGraph, settings: SessionSettings) -> OnnxProbe:
        return OnnxProbe(self._manifest, self._rows, source.open(settings), self.params)
