"""Makes forward graphs in lower precision (int8, float16) with ONNX Runtime's tool, and checks them.

The tool quantises weights that are in the graph, while a bundle's weights stay outside the file. So weights
are put into the graph, quantised, and taken out again, with a note of which parameter each is derived from;
`models.bundles.weights` derives them again from any weights. The tool renames and changes initialisers;
their names tell what they were made of.

A graph passes if the derived weights equal the tool's to the last bit, and its outputs differ from float32 by
at most a bound.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Derived, Graph
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.bundles.weights import derive, initialisers
from device_runtime.models.engines.onnx_session import LoadedGraph, SessionSettings, load_session
from device_runtime.models.errors import ExportError, ParityError
from device_runtime.models.export.graph_cost import graph_cost

from .graph import canonical_bytes, external_initialiser, external_names

SAMPLES = 16
SEEDS = (0, 1, 2, 3, 4)
BOUNDS = {"int8": 0.2, "float16": 1e-2}
"""Largest accepted root mean square of the difference from float32, over that of the outputs themselves."""


@dataclass(frozen=True)
class CheckedLoweredGraph:
    """A checked graph for a bundle, its file, and the worst difference, relative as in BOUNDS."""

    graph: Graph
    onnx: bytes
    worst: float


def lower_forward(forward: bytes, weights: Tensors, spec: InputSpec, precision: str) -> CheckedLoweredGraph:
    """Makes the forward graph in int8 or float16, and checks it.

    Inputs are standard normal, or token ids drawn uniformly; of five seeds the worst counts. Raises
    ExportError if there is nothing to quantise, ParityError if an output differs by more than its bound.
    """
    lowered = lower_precision(forward, weights, precision)
    work = graph_cost(lowered.onnx)
    graph = Graph(
        f"forward.{precision}.onnx", "", len(lowered.onnx), (), work.flops, work.fixed_bytes,
        work.bytes_per_sample, lowered.frozen, derived=lowered.derived,
    )  # fmt: skip
    exact = Graph("forward.onnx", "", 0, (), 0, 0, 0, external_names(forward))
    sessions = [_loaded(exact, forward, weights), _loaded(graph, lowered.onnx, weights)]
    worst = 0.0
    for seed in SEEDS:
        expected, outputs = (_run(loaded, _random_inputs(spec, seed)) for loaded in sessions)
        worst = max(worst, _difference(expected, outputs, precision))
    return CheckedLoweredGraph(graph, lowered.onnx, worst)


def _random_inputs(spec: InputSpec, seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    shape = (SAMPLES, *spec.shape)
    if spec.vocabulary is not None:
        return rng.integers(0, spec.vocabulary, shape)
    return rng.standard_normal(shape, np.float32)


def _loaded(graph: Graph, onnx: bytes, weights: Tensors) -> LoadedGraph:
    return load_session(graph.file, graph, onnx, initialisers(graph, weights), SessionSettings())


def _run(loaded: LoadedGraph, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    names = [output.name for output in loaded.session.get_outputs()]
    return dict(zip(names, loaded.run(names, {"x": x}), strict=True))


def _difference(
    expected: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]], precision: str
) -> float:
    worst = 0.0
    for name, value in expected.items():
        off = float(np.sqrt(np.square(outputs[name] - value).mean(dtype=np.float64)))
        size = float(np.sqrt(np.square(value).mean(dtype=np.float64)))
        relative = off / size if size else float(off > 0)
        if not relative <= BOUNDS[precision]:
            raise ParityError(
                f"graph forward.{precision}: {name} is off float32 by {relative:.2g} of its root mean "
                f"square, at most {BOUNDS[precision]:g} is accepted; export without {precision}"
            )
        worst = max(worst, relative)
    return worst


INT8_OPERATORS = ["MatMul", "Gather"]
UINT8_OPERATORS = ["Conv"]


def lower_precision(graph: bytes, weights: Tensors, precision: str) -> LoweredGraph:
    """The forward graph with its weights as int8 or float16, and the same inputs and outputs.

    int8: matrices in products become int8 with one scale for each column, lookup tables int8 with one scale,
    ungrouped convolutions uint8 with one scale (ONNX Runtime is slow at int8 convolutions, and at grouped
    ones in either type). Activations are quantised at run time, each tensor with one scale. float16: each
    matrix, table or kernel is cast to float32 where it is used. Raises ExportError for another precision or
    if there is nothing to quantise, ParityError if a device would derive other values than the tool.
    """
    if precision not in LOWERED:
        raise ExportError(f"precision is {precision!r}, expected {' or '.join(LOWERED)}")
    model, layouts = with_weights(graph, weights)
    lowered = LOWERED[precision](model, layouts)
    by_tool = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in lowered.graph.initializer}
    result = without_weights(lowered, layouts)
    if all(derived.what == "float32" for derived in result.derived):
        raise ExportError(f"the forward graph has nothing that could be {precision}")
    for name, value in derive(result.derived, weights).items():
        if value.dtype != by_tool[name].dtype or not np.array_equal(value, by_tool[name]):
            raise ParityError(
                f"graph forward.{precision}: {name} is derived otherwise than by onnxruntime.quantization"
            )
    return result


def _int8(model: Any, layouts: Layouts) -> Any:
    """Quantises in two passes, since the tool takes one type of weights. Constants stay as they are."""
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        for operators, weight_type in (
            (INT8_OPERATORS, QuantType.QInt8),
            (UINT8_OPERATORS, QuantType.QUInt8),
        ):
            quantize_dynamic(
                model,
                path,
                op_types_to_quantize=operators,
                nodes_to_exclude=[
                    node.name for node in model.graph.node if not _is_quantisable(node, layouts)
                ],
                per_channel=True,
                weight_type=weight_type,
            )
            model = onnx.load(path)
    return model


def _is_quantisable(node: Any, layouts: Layouts) -> bool:
    if node.op_type == "Gather":
        return node.input[0] in layouts
    if node.op_type == "MatMul":
        return node.input[1] in layouts
    return node.op_type == "Conv" and node.input[1] in layouts and attribute(node, "group") in (None, 1)


def _float16(model: Any, layouts: Layouts) -> Any:
    """Casts matrices and kernels to float32 where they are first read, rows of tables after the lookup."""
    graph = model.graph
    halves = {}
    for tensor in graph.initializer:
        if tensor.name in layouts and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            halves[tensor.name] = tensor.name + HALF
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, halves[tensor.name]))
    nodes: list[Any] = []
    cast: set[str] = set()
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] in halves:
            looked_up = node.output[0]
            node.input[0], node.output[0] = halves[node.input[0]], looked_up + HALF
            nodes += [node, _to_float32(node.output[0], looked_up)]
            continue
        first = [name for name in dict.fromkeys(node.input) if name in halves and name not in cast]
        nodes += [*(_to_float32(halves[name], name) for name in first), node]
        cast.update(first)
    replace(graph.node, nodes)
    return model


def _to_float32(half: str, full: str) -> Any:
    return onnx.helper.make_node("Cast", [half], [full], f"cast.{full}", to=onnx.TensorProto.FLOAT)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the tool: it advises on the root logger to prepare graphs that are prepared already."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


LOWERED = {"int8": _int8, "float16": _float16}
"""Precision -> function that rewrites a model with its weights inside."""


# Weights put into a graph, and taken out again

TRANSPOSED = ".T"  # ends the name of a parameter that is transposed to (rest, shape[0])
HALF = ".float16"  # ends the name of its float16 values
_NAMES = {"_quantized": "", "_scale": ".scale", "_zero_point": ".zero_point"}  # of onnxruntime.quantization
_TYPES = {onnx.TensorProto.INT8: "int8", onnx.TensorProto.UINT8: "uint8"}

Layouts = Mapping[str, tuple[str, bool]]
"""Initialiser's name -> (parameter, transposed), for initialisers that hold a parameter."""


@dataclass(frozen=True)
class LoweredGraph:
    """A graph whose external initialisers are parameters, `frozen`, or derived from parameters."""

    onnx: bytes
    frozen: tuple[str, ...]
    derived: tuple[Derived, ...]


def with_weights(graph: bytes, weights: Tensors) -> tuple[Any, Layouts]:
    """The model with all values inside; parameters that it transposes become transposed initialisers."""
    model = onnx.load_from_string(graph)
    parameters = set(external_names(graph))
    values = {
        tensor.name: weights[tensor.name] if tensor.name in parameters else onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
    }
    layouts = {name: (name, False) for name in parameters}
    renamed: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        parameter = _transposed_parameter(node, model.graph, values, parameters)
        if parameter is None:
            nodes.append(node)
            continue
        name = renamed[node.output[0]] = parameter + TRANSPOSED
        values[name] = np.ascontiguousarray(weights[parameter].reshape(len(weights[parameter]), -1).T)
        layouts[name] = (parameter, True)
    replace(model.graph.node, nodes)
    _drop_unread(model.graph)
    read = {name for node in model.graph.node for name in node.input}
    replace(
        model.graph.initializer,
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items() if name in read],
    )
    return model, layouts


def _transposed_parameter(
    node: Any, graph: Any, values: Mapping[str, Any], parameters: set[str]
) -> str | None:
    """The parameter that this node transposes, as a matrix (shape[0], the rest); None if it does not."""
    if node.op_type != "Transpose" or list(attribute(node, "perm") or (1, 0)) != [1, 0]:
        return None
    name: str = node.input[0]
    if name in parameters:
        return name
    for reshape in graph.node:
        if reshape.op_type == "Reshape" and list(reshape.output) == [name] and reshape.input[0] in parameters:
            rows, shape = len(values[reshape.input[0]]), values.get(reshape.input[1])
            is_matrix = shape is not None and len(shape) == len(("rows", "columns")) and shape[0] == rows
            return str(reshape.input[0]) if is_matrix else None
    return None


def _drop_unread(graph: Any) -> None:
    """Removes nodes that nothing reads any more: reshapes that were only transposed."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    replace(graph.node, [node for node in graph.node if read.intersection(node.output)])


def without_weights(model: Any, layouts: Layouts) -> LoweredGraph:
    """The ONNX file, with parameters and the values made of them as external initialisers."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    entries = {name: _derived(name, tensors, layouts) for name in tensors}
    frozen = tuple(name for name in tensors if name in layouts and entries[name] is None)
    derived = tuple(entry for entry in entries.values() if entry is not None)
    for name in (*frozen, *(entry.name for entry in derived)):
        tensor = tensors[name]
        tensor.CopyFrom(external_initialiser(name, tensor.data_type, tensor.dims))
    return LoweredGraph(canonical_bytes(model), frozen, derived)


def _derived(name: str, tensors: Mapping[str, Any], layouts: Layouts) -> Derived | None:
    """How the initialiser is derived, by its name; None for an unchanged parameter or a constant."""
    if name in layouts:
        parameter, transposed = layouts[name]
        return Derived(name, parameter, "float32", transposed) if transposed else None
    base = name.removesuffix(HALF)
    if base != name and base in layouts:
        return Derived(name, layouts[base][0], "float16", layouts[base][1])
    for ending, part in _NAMES.items():
        base = name.removesuffix(ending)
        if base != name and base in layouts:
            parameter, transposed = layouts[base]
            what = cast(Any, f"{_TYPES[tensors[base + '_zero_point'].data_type]}{part}")
            columns = len(tensors[base + "_scale"].dims) > 0
            return Derived(name, parameter, what, transposed, columns)
    return None


def attribute(node: Any, name: str) -> Any:
    """The value of a node's attribute, None if it has no such attribute."""
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def replace(field: Any, items: Iterable[Any]) -> None:
    """Sets a repeated field to `items`, which may come from the field itself."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)
