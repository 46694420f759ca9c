"""One ONNX graph with its weights, ready to run on ONNX Runtime."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.graph_check import check_graph
from device_runtime.models.bundles.manifest import TRAINING, Graph, Manifest
from device_runtime.models.bundles.quantised import has_exact_int8, holds_float16
from device_runtime.models.bundles.tensors import Flat, Tensors
from device_runtime.models.errors import BundleError, EngineError, one_line

from .base import EngineWatch, Inputs, Labels, batches, checked_inputs, checked_labels


@dataclass(frozen=True)
class Loaded:
    """A session and what it was made of; `frozen` is kept alive because the session reads its memory."""

    name: str
    graph: Graph
    session: Any
    frozen: Tensors
    watch: EngineWatch | None

    def run(self, outputs: list[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of that name, as new arrays. Raises EngineError."""
        with self._timed(len(inputs["x"])):
            return list(self.session.run(outputs, dict(inputs)))

    def run_bound(self, binding: Any, samples: int) -> None:
        """Runs into the bound outputs. Raises EngineError."""
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
    """Threads inside one operator, who is told of loads and runs, and whether the start matters most.

    quick: only the optimisers that pay in a session of few runs, as in every session of a training graph.
    optimised: the graph is as an optimiser left it. save_to: a file for the graph as it is optimised, which
    fits this processor and ONNX Runtime alone.
    """

    threads: int = 1
    watch: EngineWatch | None = None
    quick: bool = False
    optimised: bool = False
    save_to: str = ""


def load_session(name: str, graph: Graph, onnx: bytes, frozen: Tensors, settings: SessionSettings) -> Loaded:
    """A session whose initialisers are the arrays of `frozen`, shared, which must not change any more.

    No other function makes sessions, so graphs are examined here. Raises BundleError for a graph that holds
    what is not allowed, EngineError if ONNX Runtime is missing or refuses it, or what the watch raises.
    """
    _check(name, onnx, frozen, settings)
    if settings.watch is not None:
        settings.watch.will_load(name, graph)
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # a third less peak memory at the same speed
    options.enable_mem_reuse = False  # planning it takes half of the start, and saves no memory here
    options.log_severity_level = 3
    options.add_session_config_entry("session.load_model_format", "ONNX")  # it would look at the bytes itself
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # doubles times when busy
    options.add_session_config_entry("session.x64quantprecision", "0" if has_exact_int8() else "1")
    unwanted: list[str] = []
    if holds_float16(graph):  # without folded constants, layout optimisation crashes ONNX Runtime 1.23
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        unwanted = ["ConstantFolding"]
    if settings.quick or name.partition(".")[0] in TRAINING:
        unwanted += left_out(frozen)
    if settings.optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with engine_errors(f"graph {name}"):
        if settings.save_to:
            options.optimized_model_filepath = settings.save_to
        if frozen:
            values = [ort.OrtValue.ortvalue_from_numpy(value) for value in frozen.values()]
            options.add_external_initializers(list(frozen), values)
        session = ort.InferenceSession(
            onnx, options, providers=["CPUExecutionProvider"], disabled_optimizers=unwanted
        )
    return Loaded(name, graph, session, frozen, settings.watch)


def _check(name: str, onnx: bytes, frozen: Tensors, settings: SessionSettings) -> None:
    """Raises BundleError unless the graph is allowed, and takes nothing from outside but `frozen`."""
    try:
        outside = check_graph(onnx, optimised=settings.optimised)
    except BundleError as error:
        raise BundleError(f"graph {name}: {error}") from None
    if stray := sorted(outside - frozen.keys()):
        raise BundleError(f"graph {name} asks for {stray[0]}, which the manifest does not give it")


def onnxruntime() -> Any:
    """The module, imported at the first call; it tells nobody. Raises EngineError if it is missing."""
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


# FROM onnx_bound: A session whose inputs and outputs are arrays of the caller, read and written where they
# lie.


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


# FROM onnx_optimisers: Which of ONNX Runtime's optimisers change a training graph before it runs.
#
# Each that changes something has the whole graph resolved again, about 12 ms for a large one: a session of a
# training graph spends most of its start there. Kept are those that make steps faster
# (`benchmarks/exports.py`
# for the start, `benchmarks/engines.py` for the steps): MatMulAddFusion, MatmulTransposeFusion,
# ConvActivationFusion, TransposeOptimizer.

_WITH_CONSTANTS = (
    "ConstantFolding", "Level1_RuleBasedTransformer", "NchwcTransformer", "ConvAddActivationFusion",
)  # fmt: skip
"""Kept where matrices or kernels are frozen: only these can be folded, and laid out for the processor."""

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
"""Every other name in ONNX Runtime 1.19 to 1.31; it passes over names that it does not have."""


def left_out(frozen: Tensors) -> list[str]:
    """Names of the optimisers that a training graph with these frozen tensors does without."""
    constants = any(value.ndim > 1 for value in frozen.values())
    return [*_OTHERS, *(() if constants else _WITH_CONSTANTS)]
