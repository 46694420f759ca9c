"""The gate for forward graphs of lower precision: derived weights to the last bit, outputs within a bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.quantised import initialisers
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.onnx_session import Loaded, SessionSettings, load_session
from device_runtime.models.errors import ParityError
from device_runtime.models.export.graph_cost import measure_work

from .graph import external_names
from .quantise import lower

SAMPLES = 16
SEEDS = (0, 1, 2, 3, 4)
BOUNDS = {"int8": 0.2, "float16": 1e-2}
"""Root mean square of the difference from float32, of that of the outputs themselves, at most."""


@dataclass(frozen=True)
class LowerForward:
    """A graph for a bundle, its file, and the worst difference found, relative as in BOUNDS."""

    graph: Graph
    onnx: bytes
    worst: float


def lower_forward(forward: bytes, weights: Tensors, spec: InputSpec, precision: str) -> LowerForward:
    """The forward graph in int8 or float16, once it has passed the gate.

    Inputs are standard normal, or token ids drawn uniformly; of five seeds the worst counts. Raises
    ExportError if there is nothing to quantise, ParityError if an output differs by more than its bound.
    """
    lowered = lower(forward, weights, precision)
    work = measure_work(lowered.onnx)
    graph = Graph(
        f"forward.{precision}.onnx", "", len(lowered.onnx), (), work.flops, work.fixed_bytes,
        work.bytes_per_sample, lowered.frozen, derived=lowered.derived,
    )  # fmt: skip
    exact = Graph("forward.onnx", "", 0, (), 0, 0, 0, external_names(forward))
    sessions = [_loaded(exact, forward, weights), _loaded(graph, lowered.onnx, weights)]
    worst = 0.0
    for seed in SEEDS:
        expected, found = (_run(loaded, _drawn(spec, seed)) for loaded in sessions)
        worst = max(worst, _difference(expected, found, precision))
    return LowerForward(graph, lowered.onnx, worst)


def _drawn(spec: InputSpec, seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    shape = (SAMPLES, *spec.shape)
    if spec.vocabulary is not None:
        return rng.integers(0, spec.vocabulary, shape)
    return rng.standard_normal(shape, np.float32)


def _loaded(graph: Graph, onnx: bytes, weights: Tensors) -> Loaded:
    return load_session(graph.file, graph, onnx, initialisers(graph, weights), SessionSettings())


def _run(loaded: Loaded, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    names = [output.name for output in loaded.session.get_outputs()]
    return dict(zip(names, loaded.run(names, {"x": x}), strict=True))


def _difference(
    expected: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]], precision: str
) -> float:
    worst = 0.0
    for name, value in expected.items():
        off = float(np.sqrt(np.square(found[name] - value).mean(dtype=np.float64)))
        size = float(np.sqrt(np.square(value).mean(dtype=np.float64)))
        relative = off / size if size else float(off > 0)
        if not relative <= BOUNDS[precision]:
            raise ParityError(
                f"graph forward.{precision}: {name} is off float32 by {relative:.2g} of its root mean "
                f"square, at most {BOUNDS[precision]:g} is accepted; export without {precision}"
            )
        worst = max(worst, relative)
    return worst
