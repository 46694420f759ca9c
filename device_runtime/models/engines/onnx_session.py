"""One ONNX graph with its weights, ready to run on ONNX Runtime."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from device_runtime.models.bundles.graph_check import check_graph
from device_runtime.models.bundles.manifest import TRAINING, Graph
from device_runtime.models.bundles.quantised import has_exact_int8, holds_float16
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, EngineError, one_line

from .base import Watch
from .onnx_optimisers import left_out


@dataclass(frozen=True)
class Loaded:
    """A session and what it was made of; `frozen` is kept alive because the session reads its memory."""

    name: str
    graph: Graph
    session: Any
    frozen: Tensors
    watch: Watch | None

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
    watch: Watch | None = None
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
