"""Writes changing parameters into a graph that ONNX Runtime has optimised for inference.

The optimiser folds parameters, transposes them, and lays them out in blocks. This module finds out where each
parameter went, so that new values can be written there.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, prod
from operator import itemgetter
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.machine_readings import trim_heap
from device_runtime.models.bundles.graph_check import fields, number
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec, Vector

from .base import Inputs, Labels
from .onnx_nodes import (
    GRAPH_INITIALISER,
    TENSOR_BYTES,
    TENSOR_NAME,
    TENSOR_SHAPE,
    TENSOR_TYPE,
    TYPES,
    Node,
    graph_fields,
    nodes,
)
from .onnx_session import OnnxProbe, ProbeGraph, SessionSettings, load_session, with_inputs

Made = Callable[[Tensors], NDArray[np.float32]]
Write = Callable[[NDArray[np.float32], Vector], None]
Initialiser = tuple[tuple[int, ...], Vector]
BLOCKS = (16, 8, 4)
"""Channels of a block in ONNX Runtime's blocked layout, by the width of the processor's registers."""


@dataclass(frozen=True)
class Value:
    """An array that `of` computes from the parameters named in `sources`."""

    sources: tuple[str, ...]
    of: Made


@dataclass(frozen=True)
class PlacedValue:
    """A value and its layout in an initialiser: `write` puts it into an array of the initialiser's size."""

    value: Value
    write: Write

    def holds(self, tensors: Tensors, content: Vector) -> bool:
        """Whether these tensors give this content, up to rounding."""
        tried = np.zeros_like(content)
        self.write(self.value.of(tensors), tried)
        return np.allclose(tried, content, rtol=1e-4, atol=1e-5)


def float_initialisers(model: bytes) -> dict[str, Initialiser]:
    """Shape and flat values of every float32 initialiser that has its data inside."""
    initialisers = {}
    for field in graph_fields(cast(bytes, memoryview(model))):  # parts of a view are not copied
        if field.number == GRAPH_INITIALISER:
            parts = list(fields(field.content))
            tensor = {part.number: part for part in parts}
            if TENSOR_BYTES in tensor and number(tensor[TENSOR_TYPE]) == TYPES["float32"]:
                shape = tuple(number(part) for part in parts if part.number == TENSOR_SHAPE)
                name = bytes(tensor[TENSOR_NAME].content).decode()
                initialisers[name] = shape, np.frombuffer(tensor[TENSOR_BYTES].content, "<f4")
    return initialisers


def values(graph: Sequence[Node], parameters: Sequence[str]) -> Iterator[Value]:
    """Arrays that an optimiser may make: parameters as they are, transposed, or with normalisation folded."""
    after = {node.inputs[0]: node for node in graph if node.kind == "BatchNormalization"}
    for name in parameters:
        yield Value((name,), itemgetter(name))
        yield Value((name,), _transposed(name))
    for normal in after.values():
        yield Value(_gains(normal), _scale(normal))
        yield Value(normal.inputs[1:], _shift(normal, None))
    for node in graph:
        norm = after.get(node.outputs[0])
        if node.kind == "Conv" and norm is not None and node.inputs[1] in parameters:
            kernel, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
            yield Value((kernel, *_gains(norm)), _folded(kernel, _scale(norm)))
            if bias is not None:
                yield Value((bias, *norm.inputs[1:]), _shift(norm, bias))


@dataclass(frozen=True)
class CandidateValue:
    """A value computed from certain tensors; its shape and sum tell it from most other values."""

    value: Value
    tensors: Tensors
    shape: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, value: Value, tensors: Tensors) -> CandidateValue:
        array = value.of(tensors)
        return cls(value, tensors, array.shape, float(array.sum(dtype=np.float64)))

    def placed(self, initialiser: Initialiser, total: float) -> PlacedValue | None:
        """The value's layout in an initialiser whose sum is `total`; None if it is not the content."""
        shape, content = initialiser
        if prod(self.shape) > content.size or not isclose(self.total, total, rel_tol=1e-5, abs_tol=1e-3):
            return None
        layouts = (PlacedValue(self.value, write) for write in _writers(shape, self.shape))
        return next((layout for layout in layouts if layout.holds(self.tensors, content)), None)


def _writers(
    shape: tuple[int, ...], of: tuple[int, ...]
) -> Iterator[Callable[[NDArray[np.float32], Vector], None]]:
    yield _plain
    if len(shape) == 4 and len(of) == 4 and shape[2:] == of[2:]:
        for block in BLOCKS:
            if shape[0] % block == 0:
                yield _Blocked(shape, block, inputs=False)
                if shape[1] % block == 0:
                    yield _Blocked(shape, block, inputs=True)


def _plain(value: NDArray[np.float32], into: Vector) -> None:
    """Writes the value as it is; the rest of `into` stays zero."""
    into[: value.size].reshape(value.shape)[...] = value


@dataclass(frozen=True)
class _Blocked:
    """Writes kernels (out, in, h, w) in blocks of output channels, and of input channels if `inputs`.

    Blocks are padded with zeros.
    """

    shape: tuple[int, ...]
    block: int
    inputs: bool

    def __call__(self, value: NDArray[np.float32], into: Vector) -> None:
        outs, ins, height, width = self.shape
        b, inner = self.block, self.block if self.inputs else 1
        blocked = into.reshape(outs // b, ins // inner, height, width, inner, b)
        if value.shape != self.shape:
            wide = np.zeros(self.shape, np.float32)
            wide[: value.shape[0], : value.shape[1]] = value
            value = wide
        blocked.transpose(0, 5, 1, 4, 2, 3)[...] = value.reshape(
            outs // b, b, ins // inner, inner, height, width
        )


def _gains(norm: Node) -> tuple[str, str]:
    """Names of the parameters that its scale is computed from."""
    return norm.inputs[1], norm.inputs[4]


def _scale(norm: Node) -> Made:
    gain, variance = _gains(norm)
    epsilon = np.float32(cast(float, norm.attributes.get("epsilon", 1e-5)))
    return lambda t: t[gain] / np.sqrt(t[variance] + epsilon)


def _shift(norm: Node, bias: str | None) -> Made:
    _, offset, mean, _ = norm.inputs[1:]
    scale = _scale(norm)
    if bias is None:
        return lambda t: t[offset] - t[mean] * scale(t)
    return lambda t: (t[bias] - t[mean]) * scale(t) + t[offset]


def _transposed(name: str) -> Made:
    return lambda t: t[name].T


def _folded(kernel: str, scale: Made) -> Made:
    return lambda t: t[kernel] * scale(t)[:, None, None, None]


MOST_BYTES = 16 << 20
"""Most bytes of parameters: `optimise_layout` briefly holds several copies, which must not be the peak."""


class OptimisedProbe:
    """A session of the optimised graph, whose initialisers are inputs and are written for each loss.

    It is as fast as one with constants, but is made only once: folding normalisations and laying out kernels
    takes a few passes over the parameters in numpy.
    """

    def __init__(self, probe: OnnxProbe, places: Mapping[str, PlacedValue]) -> None:
        self._probe, self._places = probe, places
        self._written: Tensors = {}

    def loss(self, frozen: Tensors, params: Tensors, x: Inputs, y: Labels) -> float:
        """The loss at these values; inputs made of frozen arrays alone are written only if those changed."""
        tensors = {**frozen, **params}
        for name, place in self._places.items():
            sources = place.value.sources
            if any(source in params or self._written.get(source) is not frozen[source] for source in sources):
                place.write(place.value.of(tensors), self._probe.params.views[name].reshape(-1))
        self._written = frozen
        return self._probe.loss(x, y)


def optimise_layout(
    manifest: Manifest, rows: int, source: ProbeGraph, settings: SessionSettings
) -> OptimisedProbe | None:
    """An `OptimisedProbe` of a graph with constants; None if they are too large or the layout is not known.

    The graph is optimised twice, with different random values: each initialiser that differs must follow from
    those values in a known way. Raises EngineError, BundleError for a graph that is not allowed, and what the
    watch raises.
    """
    if sum(value.nbytes for value in source.frozen.values()) > MOST_BYTES:
        return None
    try:
        layout = _layout_of(source, _optimised(source, settings, seed=1))
        again = _optimised(source, settings, seed=2)
    except OSError:  # no folder for temporary files
        return None
    if not layout.fits(again):
        return None
    shapes = {name: again.initialisers[name][0] for name in layout.places}
    graph = msgspec.structs.replace(source.graph, trainable=tuple(shapes), frozen=())
    onnx = with_inputs(again.onnx, shapes)
    del again
    loaded = load_session(source.name, graph, onnx, {}, replace(settings, optimised=True))
    buffers = Flat([TensorSpec(name, shape) for name, shape in shapes.items()])
    trim_heap()
    return OptimisedProbe(OnnxProbe(manifest, rows, loaded, buffers), layout.places)


@dataclass(frozen=True)
class _Layout:
    """The initialisers that are made of parameters, and hashes of the others."""

    places: Mapping[str, PlacedValue]
    others: Mapping[str, bytes]

    def fits(self, optimised: _Optimised) -> bool:
        """Whether it holds for other values, too: every initialiser is as computed, or unchanged."""
        initialisers = optimised.initialisers
        return (
            initialisers.keys() == {*self.places, *self.others}
            and all(_sha(initialisers[name]) == sha for name, sha in self.others.items())
            and all(
                place.holds(optimised.tensors, initialisers[name][1]) for name, place in self.places.items()
            )
        )


def _layout_of(source: ProbeGraph, optimised: _Optimised) -> _Layout:
    graph = nodes(source.onnx)
    candidates = [CandidateValue.of(value, optimised.tensors) for value in values(graph, source.graph.frozen)]
    places, others = {}, {}
    for name, initialiser in optimised.initialisers.items():
        total = float(initialiser[1].sum(dtype=np.float64))
        layouts = (candidate.placed(initialiser, total) for candidate in candidates)
        place = next((layout for layout in layouts if layout is not None), None)
        if place is None:
            others[name] = _sha(initialiser)
        else:
            places[name] = place
    return _Layout(places, others)


def _sha(initialiser: Initialiser) -> bytes:
    return hashlib.sha256(initialiser[1].tobytes()).digest()


@dataclass(frozen=True)
class _Optimised:
    """A graph as ONNX Runtime optimised it with these tensors."""

    onnx: bytes
    tensors: Tensors
    initialisers: Mapping[str, Initialiser]


def _optimised(source: ProbeGraph, settings: SessionSettings, seed: int) -> _Optimised:
    """Optimises the graph with random values: positive, as variances are, and scaled differently per tensor.

    Raises EngineError.
    """
    rng = np.random.default_rng(seed)
    tensors = {
        name: np.float32(rng.uniform(0.5, 2)) * (0.5 + rng.random(value.shape, np.float32))
        if value.dtype == np.float32
        else value
        for name, value in source.frozen.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        load_session(source.name, source.graph, source.onnx, tensors, replace(settings, save_to=str(path)))
        trim_heap()  # else the session's memory adds to the peak of what follows
        onnx = path.read_bytes()
    return _Optimised(onnx, tensors, float_initialisers(onnx))


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
