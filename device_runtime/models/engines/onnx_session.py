"""Sessions of ONNX Runtime: made from a checked graph and its weights, bound to the caller's arrays.

Among them are those of zeroth-order training, with the parameters as a graph's inputs, and graphs with
constants.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.graph_check import check_graph, delimited_field, fields, number_field
from device_runtime.models.bundles.manifest import TRAINING, Graph, Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec
from device_runtime.models.bundles.weights import has_exact_int8, holds_float16
from device_runtime.models.errors import BundleError, EngineError, one_line

from .base import EngineWatch, Inputs, Labels, batches, checked_inputs, checked_labels
from .onnx_nodes import (
    ENTRY_KEY,
    ENTRY_VALUE,
    GRAPH_INITIALISER,
    GRAPH_INPUT,
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_TYPE,
    TENSOR_NAME,
    TENSOR_SHAPE,
    TENSOR_TYPE,
    TYPES,
)


@dataclass(frozen=True)
class LoadedGraph:
    """A session and what it was made from; keeps `frozen` alive, because the session reads its memory."""

    name: str
    graph: Graph
    session: Any
    frozen: Tensors
    watch: EngineWatch | None

    def run(self, outputs: list[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of these names, as new arrays. Raises EngineError."""
        with self._timed(len(inputs["x"])):
            return list(self.session.run(outputs, dict(inputs)))

    def run_bound(self, binding: Any, samples: int) -> None:
        """Runs from bound inputs into bound outputs. Raises EngineError."""
        with self._timed(samples):
            self.session.run_with_iobinding(binding)

    @contextmanager
    def _timed(self, samples: int) -> Iterator[None]:
        start = time.perf_counter()
        with engine_errors(f"graph {self.name} on {samples} samples"):
            yield
        if self.watch is not None:
            self.watch.ran(self.name, self.graph, samples, time.perf_counter() - start)


@dataclass(frozen=True)
class SessionSettings:
    """How a session is made.

    threads: the number of threads inside one operator.
    watch: notified of loads and runs.
    quick: use only the optimisers that pay off in a session of few runs, as every session of a training graph
    does.
    optimised: the graph has been optimised already, here, from one that passed the check.
    rewritten: the graph was made here from one that passed the check; it is not checked again. Its operators
    are the final ones, and run in the order of the file, which keeps few values at a time.
    save_to: a file to write the optimised graph to, which fits this processor and this version of ONNX
    Runtime only.
    """

    threads: int = 1
    watch: EngineWatch | None = None
    quick: bool = False
    optimised: bool = False
    rewritten: bool = False
    save_to: str = ""


def load_session(
    name: str, graph: Graph, onnx: bytes, frozen: Tensors, settings: SessionSettings
) -> LoadedGraph:
    """Makes a session whose initialisers share the arrays of `frozen`, which must not change any more.

    No other function makes sessions, so every graph is checked here. Raises BundleError for a graph with
    anything that is not allowed, EngineError if ONNX Runtime is missing or refuses it, and what the watch
    raises.
    """
    if not settings.rewritten:
        _check(name, onnx, frozen, settings)
    if settings.watch is not None:
        settings.watch.will_load(name, graph)
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # a third less peak memory at the same speed
    options.enable_mem_reuse = False  # planning takes half of the start, and saves no memory here
    options.log_severity_level = 3
    options.add_session_config_entry("session.load_model_format", "ONNX")  # else it guesses from the bytes
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # slow on a busy machine: x2
    options.add_session_config_entry("session.x64quantprecision", "0" if has_exact_int8() else "1")
    unwanted: list[str] = []
    if holds_float16(graph):  # without folded constants, layout optimisation crashes ONNX Runtime 1.23
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        unwanted = ["ConstantFolding"]
    if settings.quick or name.partition(".")[0] in TRAINING:
        unwanted += disabled_optimisers(frozen)
    if settings.optimised or settings.rewritten:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if settings.rewritten:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    with engine_errors(f"graph {name}"):
        if settings.save_to:
            options.optimized_model_filepath = settings.save_to
        if frozen:
            values = [ort.OrtValue.ortvalue_from_numpy(value) for value in frozen.values()]
            options.add_external_initializers(list(frozen), values)
        session = ort.InferenceSession(
            onnx, options, providers=["CPUExecutionProvider"], disabled_optimizers=unwanted
        )
    return LoadedGraph(name, graph, session, frozen, settings.watch)


def _check(name: str, onnx: bytes, frozen: Tensors, settings: SessionSettings) -> None:
    """Raises BundleError unless the graph is allowed, and needs no data from outside but `frozen`."""
    try:
        outside = check_graph(onnx, optimised=settings.optimised)
    except BundleError as error:
        raise BundleError(f"graph {name}: {error}") from None
    if stray := sorted(outside - frozen.keys()):
        raise BundleError(f"graph {name} asks for {stray[0]}, which the manifest does not give it")


def onnxruntime() -> Any:
    """The module onnxruntime, imported at the first call, with telemetry disabled.

    Raises EngineError if it is missing.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # 1.31 sends events to its maker, on Linux too
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise EngineError(f"ONNX Runtime cannot be loaded: {one_line(error)}") from error
    return ort


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turns whatever ONNX Runtime raises into an EngineError of one line."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"ONNX Runtime, {what}: {one_line(error)}") from error


class BoundSession:
    """A session that reads and writes the caller's arrays in place.

    Its trainable inputs are slices of the flat buffer `params`, bound once.
    """

    def __init__(self, loaded: LoadedGraph, params: Flat) -> None:
        self._loaded = loaded
        with engine_errors(f"graph {loaded.name}"):
            self._binding: Any = loaded.session.io_binding()
        for name in loaded.graph.trainable:
            self.bind_input(name, params.views[name])

    def bind_input(self, name: str, buffer: np.ndarray[Any, Any]) -> None:
        """Reads an input from this buffer, which must not be moved."""
        with engine_errors(f"graph {self._loaded.name}"):
            self._binding.bind_ortvalue_input(name, _ortvalue(buffer))

    def bind_output(self, name: str, buffer: np.ndarray[Any, Any]) -> None:
        """Writes an output to this buffer, which must not be moved."""
        with engine_errors(f"graph {self._loaded.name}"):
            self._binding.bind_ortvalue_output(name, _ortvalue(buffer))

    def run(self, samples: int) -> None:
        """Runs on what is bound. Raises EngineError."""
        self._loaded.run_bound(self._binding, samples)


def _ortvalue(array: np.ndarray[Any, Any]) -> Any:
    return onnxruntime().OrtValue.ortvalue_from_numpy(array)


_WITH_CONSTANTS = (
    "ConstantFolding", "Level1_RuleBasedTransformer", "NchwcTransformer", "ConvAddActivationFusion",
)  # fmt: skip
"""Kept if matrices or kernels are frozen: nothing else can be folded, or laid out for the processor."""

_OTHERS = (
    "AttentionFusion", "BiasDropoutFusion", "BiasGeluFusion", "BiasSkipLayerNormFusion", "BiasSoftmaxFusion",
    "CastFloat16Transformer", "CommonSubexpressionElimination", "ConstantSharing", "DoubleQDQPairsRemover",
    "DynamicQuantizeMatMulFusion", "EmbedLayerNormFusion", "EnsureUniqueDQForNodeUnit", "FastGeluFusion",
    "FreeDimensionOverrideTransformer", "FuseFp16InitializerToFp32NodeTransformer",
    "GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluFusionL1", "GeluFusionL2",
    "GemmActivationFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    "LayerNormFusionL1", "LayerNormFusionL2", "Level2_RuleBasedTransformer", "MatMulActivationFusion",
    "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulScaleFusion", "NhwcTransformer",
    "QDQFinalCleanupTransformer", "QDQPropagationTransformer", "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer", "QuickGeluFusion", "RemoveDuplicateCastTransformer", "ReshapeFusion",
    "SimplifiedLayerNormFusion", "SkipLayerNormFusion", "SliceConcatToSpaceToDepthFusion",
    "TransposeOptimizer_CPUExecutionProvider", "WeightBiasQuantization", "WhereDummyDq",
)  # fmt: skip
"""All others of ONNX Runtime 1.19 to 1.31, which ignores names that it does not know."""


def disabled_optimisers(frozen: Tensors) -> list[str]:
    """Names of ONNX Runtime's optimisers to disable for a training graph with these frozen tensors.

    After each optimiser that changes something, ONNX Runtime resolves the whole graph again, about 12 ms for
    a large one: most of the start of a training graph's session. So only those stay that make steps faster:
    MatMulAddFusion, MatmulTransposeFusion, ConvActivationFusion, TransposeOptimizer
    (`benchmarks/exports.py` measures the start, `benchmarks/engines.py` the steps).
    """
    constants = any(value.ndim > 1 for value in frozen.values())
    return [*_OTHERS, *(() if constants else _WITH_CONSTANTS)]


class OnnxProbe:
    """Loss by one session that reads the parameters in place; see `engines.base.LossProbe`.

    rows: the most samples of a run.
    """

    def __init__(self, manifest: Manifest, rows: int, loaded: LoadedGraph, params: Flat) -> None:
        self.params = params
        self._manifest, self._rows, self._bound = manifest, rows, BoundSession(loaded, params)

    def loss(self, x: Inputs, y: Labels) -> float:
        """The mean of the bundle's loss: of each sample in float32, summed in float64 in the given order."""
        x = checked_inputs(self._manifest, x)
        labels = checked_labels(self._manifest, x, y)
        losses = np.empty(len(y), np.float32)
        for part in batches(len(x), self._rows):
            batch = self._manifest.input.as_graphs_take(x[part])  # which the session reads in place
            self._bound.bind_input("x", batch)
            self._bound.bind_input("y", labels[part])
            self._bound.bind_output("losses", losses[part])
            self._bound.run(part.stop - part.start)
        return float(losses.mean(dtype=np.float64))


@dataclass(frozen=True)
class ProbeGraph:
    """A graph that takes parameters as inputs, and the values of its initialisers."""

    name: str
    graph: Graph
    onnx: bytes
    frozen: Mapping[str, NDArray[Any]]

    def suits_constants(self, manifest: Manifest) -> bool:
        """Whether constants may be faster: it has convolutions, and trains more than the head."""
        head = {manifest.head.weight, manifest.head.bias}
        return not head.issuperset(self.graph.trainable) and has_convolution(self.onnx)

    def open(self, settings: SessionSettings) -> LoadedGraph:
        """A session with the parameters as inputs. Raises EngineError, and what the watch raises."""
        return load_session(self.name, self.graph, self.onnx, self.frozen, settings)

    def with_constants(self, params: Flat) -> "ProbeGraph":
        """The same graph with the parameters as initialisers, which share the memory of `params`."""
        constant = msgspec.structs.replace(
            self.graph, trainable=(), frozen=(*self.graph.frozen, *params.views)
        )
        frozen = {**self.frozen, **params.views}
        return replace(self, graph=constant, onnx=with_constants(self.onnx, params.specs), frozen=frozen)


def rows_beside(held_bytes: int, graph: Graph, rows: int) -> int:
    """`rows`, less the samples whose activations take `held_bytes`; at least half of `rows`.

    With that many samples a run, holding `held_bytes` in addition to the activations does not raise peak
    memory.
    """
    return max(rows - -(-held_bytes // max(1, graph.bytes_per_sample)), -(-rows // 2))


# Turns inputs of a graph into constants, which ONNX Runtime folds and lays out for the processor, and back.

INPUT_NAME = 1
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
EXTERNAL = 1


@lru_cache(maxsize=16)
def has_convolution(onnx: bytes) -> bool:
    """Whether the model has a convolution. Raises BundleError if it is no model."""
    return any(
        part.number == NODE_TYPE and part.content == b"Conv"
        for graph in fields(onnx)
        if graph.number == MODEL_GRAPH
        for node in fields(graph.content)
        if node.number == GRAPH_NODE
        for part in fields(node.content)
    )


def with_constants(onnx: bytes, specs: Sequence[TensorSpec]) -> bytes:
    """The model with these inputs as initialisers without data, which the session is given in memory.

    Raises BundleError if it is no model.
    """
    constants = {spec.name.encode(): spec for spec in specs}
    return b"".join(
        delimited_field(MODEL_GRAPH, b"".join(_graph(field.content, constants)))
        if field.number == MODEL_GRAPH
        else field.encoded
        for field in fields(onnx)
    )


def with_inputs(onnx: bytes, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The model with these float32 initialisers as inputs. Raises BundleError if it is no model."""
    names = {name.encode() for name in shapes}
    parts = []
    for field in fields(onnx):
        if field.number != MODEL_GRAPH:
            parts.append(field.encoded)
            continue
        rest = [
            part.encoded
            for part in fields(field.content)
            if part.number != GRAPH_INITIALISER or _name(part.content, TENSOR_NAME) not in names
        ]
        inputs = (delimited_field(GRAPH_INPUT, encoded_input(name, shape)) for name, shape in shapes.items())
        parts.append(delimited_field(MODEL_GRAPH, b"".join((*rest, *inputs))))
    return b"".join(parts)


def encoded_input(name: str, shape: tuple[int, ...]) -> bytes:
    """An encoded ValueInfoProto of float32."""
    sizes = b"".join(delimited_field(1, number_field(1, size)) for size in shape)
    tensor = number_field(1, TYPES["float32"]) + delimited_field(2, sizes)
    return delimited_field(INPUT_NAME, name.encode()) + delimited_field(2, delimited_field(1, tensor))


def _graph(graph: bytes, constants: dict[bytes, TensorSpec]) -> Iterator[bytes]:
    for field in fields(graph):
        name = _name(field.content, INPUT_NAME) if field.number == GRAPH_INPUT else b""
        yield (
            delimited_field(GRAPH_INITIALISER, _without_data(constants[name]))
            if name in constants
            else field.encoded
        )


def _name(value: bytes, which: int) -> bytes:
    return next((part.content for part in fields(value) if part.number == which), b"")


def _without_data(spec: TensorSpec) -> bytes:
    shape = b"".join(number_field(TENSOR_SHAPE, size) for size in spec.shape)
    named = delimited_field(TENSOR_NAME, spec.name.encode())
    where = {"location": "weights", "offset": "0", "length": str(4 * spec.size)}
    entries = (
        delimited_field(ENTRY_KEY, key.encode()) + delimited_field(ENTRY_VALUE, value.encode())
        for key, value in where.items()
    )
    return (
        shape
        + number_field(TENSOR_TYPE, TYPES[spec.dtype])
        + named
        + b"".join(delimited_field(TENSOR_EXTERNAL, entry) for entry in entries)
        + number_field(TENSOR_LOCATION, EXTERNAL)
    )
