"""Forward graphs in lower precision, by ONNX Runtime's own tools; their weights stay outside the file.

The tool quantises weights that are in the graph. So they are put in, quantised, and taken out again, with a
note of what each is derived from; `models.bundles.quantised` derives them again from any weights.
"""
# mypy: allow-untyped-calls, allow-any-unimported

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from device_runtime.models.bundles.quantised import derive
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ExportError, ParityError

from .outside_weights import HALF, Layouts, Lower, attribute, emptied, filled, replace

INT8_OPERATORS = ["MatMul", "Gather"]
UINT8_OPERATORS = ["Conv"]


def lower(graph: bytes, weights: Tensors, precision: str) -> Lower:
    """The forward graph with its weights as int8 or float16, and inputs and outputs as they were.

    int8: matrices in products become int8 with one scale for each column, tables that are looked up int8 with
    one scale, ungrouped convolutions uint8 with one scale (ONNX Runtime is slow at int8 convolutions, and at
    grouped ones in either). Activations are quantised as they come, each tensor with one scale. float16:
    each matrix, table or kernel becomes float32 again where it is used.
    Raises ExportError for another precision, or if there is nothing to quantise, ParityError if a device
    would derive other values than the tool.
    """
    if precision not in LOWERED:
        raise ExportError(f"precision is {precision!r}, expected {' or '.join(LOWERED)}")
    model, layouts = filled(graph, weights)
    lowered = LOWERED[precision](model, layouts)
    by_tool = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in lowered.graph.initializer}
    result = emptied(lowered, layouts)
    if all(derived.what == "float32" for derived in result.derived):
        raise ExportError(f"the forward graph has nothing that could be {precision}")
    for name, value in derive(result.derived, weights).items():
        if value.dtype != by_tool[name].dtype or not np.array_equal(value, by_tool[name]):
            raise ParityError(
                f"graph forward.{precision}: {name} is not derived as onnxruntime.quantization makes it here"
            )
    return result


def _int8(model: Any, layouts: Layouts) -> Any:
    """Twice: the tool takes one type of weights. What is no parameter is no weight, and stays as it is."""
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
                nodes_to_exclude=[node.name for node in model.graph.node if not _worth_it(node, layouts)],
                per_channel=True,
                weight_type=weight_type,
            )
            model = onnx.load(path)
    return model


def _worth_it(node: Any, layouts: Layouts) -> bool:
    if node.op_type == "Gather":
        return node.input[0] in layouts
    if node.op_type == "MatMul":
        return node.input[1] in layouts
    return node.op_type == "Conv" and node.input[1] in layouts and attribute(node, "group") in (None, 1)


def _float16(model: Any, layouts: Layouts) -> Any:
    """Matrices and kernels are cast to float32 where they are first read, tables after they are looked up."""
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
    """The tool advises on the root logger to run what `filled` and ONNX Runtime itself do."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


LOWERED = {"int8": _int8, "float16": _float16}
"""Precision -> what rewrites a model whose weights are in it."""
