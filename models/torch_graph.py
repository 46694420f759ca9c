"""From a traced torch graph to a small ONNX file without weights, the same bytes every time."""
# mypy: allow-untyped-calls, allow-any-unimported

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import torch

from .torch_trace import Traced

OPSET = 20
IR_VERSION = 10  # the newest that ONNX Runtime 1.19 reads
LOCATION = "weights"  # a name only: the values are given to the session in memory


def to_onnx(traced: Traced, trainable: Sequence[str]) -> bytes:
    """The ONNX file; `trainable` stay inputs, all other tensors become external initialisers."""
    return with_inputs(convert(traced), traced, trainable)


def convert(traced: Traced) -> Any:
    """The graph as torch's exporter writes it, all tensors as inputs, as an onnx.ModelProto."""
    batch = torch.export.Dim("batch", min=1)
    shapes = [{0: batch} if name in ("x", "y") else None for name in traced.inputs]
    data = len(traced.example) - 1
    with _quiet():
        program = torch.onnx.export(
            traced.graph,
            traced.example,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(*shapes[:data], shapes[data:]),
            verbose=False,
        )
    return program.model_proto


def with_inputs(converted: Any, traced: Traced, trainable: Sequence[str]) -> bytes:
    """The file from what `convert` gave, which may be used again for other `trainable`."""
    model = onnx.ModelProto()
    model.CopyFrom(converted)
    _merge_constants(model.graph)
    _rename(model.graph, traced)
    _freeze(model.graph, set(traced.inputs) - {"x", "y", *trainable})
    onnx_file: bytes = _stripped(model).SerializeToString(deterministic=True)
    return onnx_file


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of what is meant: lists as inputs, torchvision not being there."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _merge_constants(graph: Any) -> None:
    """Keeps one of each set of equal initialisers; they are constants, the weights are inputs here."""
    kept: dict[bytes, str] = {}
    renamed: dict[str, str] = {}
    unique = []
    for constant in graph.initializer:
        array = onnx.numpy_helper.to_array(constant)
        key = repr((array.dtype.str, array.shape)).encode() + array.tobytes()
        if key in kept:
            renamed[constant.name] = kept[key]
        else:
            kept[key] = constant.name
            unique.append(onnx.numpy_helper.from_array(array, constant.name))
    del graph.initializer[:]
    graph.initializer.extend(unique)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _rename(graph: Any, traced: Traced) -> None:
    """Inputs and outputs get their own names, everything in between a number."""
    names = dict(zip((value.name for value in graph.input), traced.inputs, strict=True))
    outputs = [value.name for value in graph.output]
    if len(set(outputs)) != len(outputs) or names.keys() & set(outputs):
        raise ValueError("an output of the graph is also an input or another output")
    names.update(zip(outputs, traced.outputs, strict=True))
    for value in _values(graph):
        names.setdefault(value, f"v{len(names)}")
    names[""] = ""
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name = names[item.name]
    for index, node in enumerate(graph.node):
        node.name = f"n{index}"
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]


def _values(graph: Any) -> Iterable[str]:
    for constant in graph.initializer:
        yield constant.name
    for node in graph.node:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise ValueError(
                f"operator {node.op_type} holds a graph of its own; loops and branches cannot be"
            )
        yield from (name for name in node.output if name)


def external_names(data: bytes) -> tuple[str, ...]:
    """Names of the initialisers that are not in the file."""
    graph = onnx.load_from_string(data).graph
    return tuple(i.name for i in graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL)


def _freeze(graph: Any, frozen: set[str]) -> None:
    """Turns inputs into initialisers whose data lie outside the file; those that nothing reads go."""
    inputs = list(graph.input)
    used = {name for node in graph.node for name in node.input}
    del graph.input[:]
    for value in inputs:
        if value.name not in frozen:
            graph.input.append(value)
            continue
        if value.name not in used:  # ONNX Runtime refuses values for an initialiser it has dropped
            continue
        tensor_type = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor_type.shape.dim]
        initializer = graph.initializer.add(name=value.name, data_type=tensor_type.elem_type, dims=dims)
        initializer.data_location = onnx.TensorProto.EXTERNAL
        size = 4
        for dim in dims:
            size *= dim
        for key, entry in (("location", LOCATION), ("offset", "0"), ("length", str(size))):
            initializer.external_data.add(key=key, value=entry)


def _stripped(model: Any) -> Any:
    """A copy with nothing in it but what is computed."""
    bare = onnx.ModelProto(ir_version=IR_VERSION, producer_name="device-runtime")
    bare.opset_import.extend(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    bare.functions.extend(model.functions)
    bare.graph.CopyFrom(model.graph)
    bare.graph.name = "graph"
    bare.graph.doc_string = ""
    for field in ("value_info", "metadata_props", "quantization_annotation"):
        bare.graph.ClearField(field)
    for item in (*bare.graph.node, *bare.graph.input, *bare.graph.output, *bare.graph.initializer):
        item.doc_string = ""
        item.ClearField("metadata_props")
    return bare
