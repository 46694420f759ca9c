"""Computes the FLOPs and the peak activation memory of an ONNX graph from its shapes alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx

from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.engines.onnx_session import SessionSettings, load_session
from device_runtime.models.errors import ExportError

BATCHES = (8, 32)  # the cost is taken as linear in the batch size, through these two
_ELEMENT_BYTES = {
    onnx.TensorProto.BOOL: 1, onnx.TensorProto.INT8: 1, onnx.TensorProto.UINT8: 1,
    onnx.TensorProto.FLOAT16: 2, onnx.TensorProto.INT64: 8, onnx.TensorProto.DOUBLE: 8,
}  # fmt: skip

_ALIASES = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}  # the result shares the input's memory
_MOVES = {
    "Transpose", "Slice", "Concat", "Pad", "Expand", "Gather", "GatherElements", "Shape", "Cast",
    "Constant", "ConstantOfShape", "Range", "Split", "ScatterElements", "Tile", "Where",
} | _ALIASES  # fmt: skip
_IN_PLACE = {
    "Add", "Sub", "Mul", "Div", "Relu", "Neg", "Exp", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf",
    "Softmax", "LogSoftmax", "Clip", "Abs", "Log", "Pow",
}  # fmt: skip  # may overwrite an input of the same size that no later node reads

_BY_VALUE = {"NonZero", "Compress", "Unique", "NonMaxSuppression"}  # the result's shape depends on values


@dataclass(frozen=True)
class GraphCost:
    """FLOPs of one sample, and peak memory of live activations: fixed_bytes + samples * bytes_per_sample.

    A multiplication with addition counts as two FLOPs, data movement as none. Activations are all values that
    the graph computes, with its outputs, without its inputs and parameters.
    """

    flops: int
    fixed_bytes: int
    bytes_per_sample: int


@dataclass(frozen=True)
class _Value:
    shape: tuple[int, ...]
    element_bytes: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.element_bytes


def graph_cost(graph: bytes) -> GraphCost:
    """The cost of an ONNX file. Raises ExportError if a shape does not follow from the batch size alone."""
    model = onnx.load_from_string(graph)
    small, large = ((_flops(model, n), _peak_bytes(model, n)) for n in BATCHES)
    samples = BATCHES[1] - BATCHES[0]
    flops, per_sample = ((b - a) // samples for a, b in zip(small, large, strict=True))
    return GraphCost(flops, max(0, large[1] - BATCHES[1] * per_sample), per_sample)


def _values(model: Any, batch: int) -> dict[str, _Value]:
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for value in (*sized.graph.input, *sized.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_value = batch
    inferred = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    values = {
        tensor.name: _value(tensor.name, tensor.data_type, tensor.dims) for tensor in inferred.initializer
    }
    unknown = []
    for value in (*inferred.input, *inferred.output, *inferred.value_info):
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        values[value.name] = _value(value.name, tensor.elem_type, dims)
        unknown += [value] if min(dims, default=0) < 0 else []
    if unknown and (by_value := [node for node in sized.graph.node if node.op_type in _BY_VALUE]):
        raise ExportError(
            f"operator {by_value[0].op_type} gives values whose number does not follow from the batch size"
        )
    shapes = _shapes_of_a_run(sized, unknown) if unknown else {}
    return values | {
        value.name: _value(value.name, value.type.tensor_type.elem_type, shapes[value.name])
        for value in unknown
    }


def _value(name: str, element: int, dims: Any) -> _Value:
    return _Value(tuple(dims), _ELEMENT_BYTES.get(element, 4))


def _shapes_of_a_run(model: Any, unknown: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of values that shape inference does not find, of a run on zeros with weights of 0."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    outside = [tensor for tensor in whole.graph.initializer if tensor.data_location == tensor.EXTERNAL]
    for tensor in outside:
        whole.graph.initializer.remove(tensor)
        whole.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    del whole.graph.output[:]
    whole.graph.output.extend(unknown)
    names = [value.name for value in unknown]
    entry = Graph("", "", 0, (), 0, 0, 0)
    loaded = load_session("shapes", entry, whole.SerializeToString(), {}, SessionSettings(rewritten=True))
    zeros = {
        value.name: np.zeros(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in whole.graph.input
    }
    return {name: value.shape for name, value in zip(names, loaded.run(names, zeros), strict=True)}


def _flops(model: Any, batch: int) -> int:
    values = _values(model, batch)
    return sum(_node_flops(node, values) for node in model.graph.node)


def _node_flops(node: Any, values: Mapping[str, _Value]) -> int:
    first, result = values[node.input[0]] if node.input else _Value((), 4), values[node.output[0]]
    if node.op_type in ("Conv", "ConvInteger"):
        return 2 * result.size * prod(values[node.input[1]].shape[1:])
    if node.op_type == "ConvTranspose":
        return 2 * first.size * prod(values[node.input[1]].shape[1:])
    if node.op_type in ("LSTM", "GRU"):  # x (steps, n, inputs), w (1, gates, inputs), r (1, gates, hidden)
        return 2 * prod(first.shape[:2]) * sum(prod(values[name].shape) for name in node.input[1:3])
    if node.op_type in ("MatMul", "MatMulInteger"):
        return 2 * result.size * first.shape[-1]
    if node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return 2 * result.size * first.shape[0 if transposed else 1]
    if node.op_type in _MOVES:
        return 0
    return max(first.size, result.size)  # elementwise, or a reduction of the first input


def _peak_bytes(model: Any, batch: int) -> int:
    """Peak bytes of live values: nodes run in ONNX Runtime's order, a value is freed after its last use."""
    values = _values(model, batch)
    memory = {name: index for index, name in enumerate(values)}  # value -> the buffer it lives in
    last_use = dict(_last_uses(model, memory))
    live: dict[int, int] = {}
    now = peak = 0
    for step, node in enumerate(model.graph.node):
        dying = {memory[n] for n in node.input if n and last_use[memory[n]] == step and memory[n] in live}
        for name in (n for n in node.output if n and memory[n] not in live):
            buffer, needed = memory[name], values[name].bytes
            reused = next((b for b in dying if node.op_type in _IN_PLACE and live[b] == needed), None)
            if reused is not None:
                dying.remove(reused)
                now -= live.pop(reused)
            live[buffer] = needed
            now += needed
        peak = max(peak, now)
        for buffer in dying:
            now -= live.pop(buffer)
    return peak


def _last_uses(model: Any, memory: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Gives aliases their input's buffer in `memory`, then yields (buffer, step) for every use, in order."""
    for node in model.graph.node:
        if node.op_type in _ALIASES:
            memory[node.output[0]] = memory[node.input[0]]
    for step, node in enumerate(model.graph.node):
        for name in (*node.input, *node.output):
            if name:
                yield memory[name], step
    for value in model.graph.output:
        yield memory[value.name], len(model.graph.node)
