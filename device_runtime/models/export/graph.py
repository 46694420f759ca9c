"""Converts a traced torch graph into a small ONNX file without weights, the same bytes every time."""
# mypy: allow-untyped-calls, allow-any-unimported

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import onnx
import torch
from onnx import helper
from torch import Tensor

from device_runtime.models.errors import ExportError
from device_runtime.models.export.operators.writer import BATCH, DTYPES, Unwritable, Writer, fresh_names
from device_runtime.models.torch_modules.rules import (
    description,
    is_description,
    renamed,
    without_descriptions,
)

from .operators import OPERATORS
from .trace import Traced

logger = logging.getLogger(__name__)

OPSET = 20
IR_VERSION = 10  # the newest that ONNX Runtime 1.19 reads
LOCATION = "weights"  # no such file exists: the session gets the values in memory


def to_onnx(traced: Traced) -> bytes:
    """The ONNX file with all outputs; every tensor of the model is an external initialiser."""
    return subgraph(convert(traced), traced, (), traced.outputs.names)


def convert(traced: Traced) -> Any:
    """The whole graph as an onnx.ModelProto, with all tensors as inputs.

    Raises ExportError for a graph that computes in another precision, or in complex numbers.
    """
    for node in traced.graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and (
            value.is_complex() or value.dtype in (torch.float16, torch.bfloat16)
        ):
            raise ExportError(
                f"{node.target} computes in {value.dtype}, expected float32: use no .half(), autocast or "
                "complex numbers"
            )
    try:
        return write(traced, OPSET)
    except Unwritable as error:
        logger.info("written by torch's exporter, which takes longer: %s", error)
        return exported(traced)


def exported(traced: Traced) -> Any:
    """The graph as torch's exporter writes it."""
    batch = {0: torch.export.Dim("batch", min=1)}
    outputs = traced.outputs
    shapes: list[Any] = [batch] * (2 if outputs.labels else 1)
    if outputs.extras:
        shapes.append([batch if extra.per_sample else None for extra in outputs.extras])
    shapes.append([None] * len(traced.example[-1]))
    with _quiet():
        program = torch.onnx.export(
            without_descriptions(traced.graph),
            traced.example,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=tuple(shapes),
            verbose=False,
        )
    for node in program.model_proto.graph.node:
        node.doc_string = ""
    return program.model_proto


def subgraph(converted: Any, traced: Traced, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The ONNX file that computes these outputs of a graph from `convert`, which is not changed.

    The tensors named in `inputs` are inputs; the other tensors that are needed are external initialisers.
    """
    model = onnx.ModelProto()
    model.CopyFrom(converted)
    _separate_outputs(model.graph)
    indices = [traced.outputs.names.index(name) for name in outputs]
    _prune(model.graph, [model.graph.output[index] for index in indices])
    _merge_constants(model.graph)
    _rename(model.graph, traced.inputs, outputs)
    extras = [extra.name for extra in traced.outputs.extras]
    _freeze(model.graph, set(traced.inputs) - {"x", "y", *extras, *inputs})
    return canonical_bytes(model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter's warnings about intended things: lists as inputs, missing torchvision."""
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
    """Keeps one of each set of equal initialisers. All are constants, since weights are still inputs here."""
    names: dict[bytes, str] = {}
    renamed: dict[str, str] = {}
    unique = []
    for constant in graph.initializer:
        array = onnx.numpy_helper.to_array(constant)
        key = repr((array.dtype.str, array.shape)).encode() + array.tobytes()
        if key in names:
            renamed[constant.name] = names[key]
        else:
            names[key] = constant.name
            unique.append(onnx.numpy_helper.from_array(array, constant.name))
    del graph.initializer[:]
    graph.initializer.extend(unique)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _separate_outputs(graph: Any) -> None:
    """Gives an output that is also an input, or another output, its own name."""
    names = {value.name for value in graph.input}
    for value in graph.output:
        if value.name in names:
            own = f"{value.name}.as_output{len(names)}"
            graph.node.add(op_type="Identity", input=[value.name], output=[own])
            value.name = own
        names.add(value.name)


def _prune(graph: Any, outputs: Sequence[Any]) -> None:
    """Keeps the nodes and initialisers that these outputs need, in their order."""
    needed = {value.name for value in outputs}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    fields = {"output": list(outputs), "node": nodes[::-1]}
    fields["initializer"] = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, items in fields.items():
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)


def _rename(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Gives inputs and outputs these names, and numbers everything in between."""
    names = dict(zip((value.name for value in graph.input), inputs, strict=True))
    names.update(zip((value.name for value in graph.output), outputs, strict=True))
    fresh = fresh_names("v", names.values(), len(names))
    for value in _values(graph):
        if value not in names:
            names[value] = next(fresh)
    names[""] = ""
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name = names[item.name]
    for index, node in enumerate(graph.node):
        node.name = f"n{index}"
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
        node.doc_string = renamed(node.doc_string, names)


def _values(graph: Any) -> Iterable[str]:
    for constant in graph.initializer:
        yield constant.name
    for node in graph.node:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise ValueError(
                f"operator {node.op_type} holds a graph of its own; loops and branches cannot be exported"
            )
        yield from (name for name in node.output if name)


def external_names(data: bytes) -> tuple[str, ...]:
    """Names of the initialisers that are not in the file."""
    graph = onnx.load_from_string(data).graph
    return tuple(i.name for i in graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL)


def _freeze(graph: Any, frozen: set[str]) -> None:
    """Turns inputs into initialisers with data outside the file; drops those that nothing reads."""
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
        graph.initializer.append(external_initialiser(value.name, tensor_type.elem_type, dims))


def external_initialiser(name: str, data_type: int, dims: Sequence[int]) -> Any:
    """An initialiser without data; the session gets the values in memory."""
    initializer = onnx.TensorProto(name=name, data_type=data_type, dims=dims)
    initializer.data_location = onnx.TensorProto.EXTERNAL
    element = onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize
    for key, entry in (("location", LOCATION), ("offset", 0), ("length", element * prod(dims))):
        initializer.external_data.add(key=key, value=str(entry))
    return initializer


def canonical_bytes(model: Any) -> bytes:
    """The ONNX file without anything that has no effect on the result; equal graphs give equal bytes."""
    bare = onnx.ModelProto(ir_version=IR_VERSION, producer_name="device-runtime")
    bare.opset_import.extend(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    bare.functions.extend(model.functions)
    bare.graph.CopyFrom(model.graph)
    bare.graph.name = "graph"
    bare.graph.doc_string = ""
    for field in ("value_info", "metadata_props", "quantization_annotation"):
        bare.graph.ClearField(field)
    for item in (*bare.graph.node, *bare.graph.input, *bare.graph.output, *bare.graph.initializer):
        item.ClearField("metadata_props")
    for item in (*bare.graph.input, *bare.graph.output, *bare.graph.initializer):
        item.doc_string = ""
    onnx_file: bytes = bare.SerializeToString(deterministic=True)
    return onnx_file


def write(traced: Traced, opset: int) -> Any:
    """The graph as an onnx.ModelProto whose first input is "x"; describes the layers of a training graph.

    Raises Unwritable.
    """
    graph, outputs = traced.graph, traced.outputs.names
    writer = Writer(traced.inputs)
    input_names = iter(traced.inputs)
    inputs: list[Any] = []
    results: list[Any] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            writer.values[node] = name = next(input_names)
            inputs.append(_value_info(name, node.meta["val"]))
        elif node.op == "get_attr":
            writer.values[node] = writer.constant(getattr(graph, node.target).detach().numpy())
        elif node.op == "output":
            results = list(node.args[0])
        elif isinstance(node.meta.get("val"), (int, torch.SymInt)):
            continue  # sizes are taken from the shapes
        elif is_description(node):
            writer.describe(node)
        else:
            if node.target not in OPERATORS:
                raise Unwritable(f"operator {node.target}")
            writer.values[node] = OPERATORS[node.target](writer, node)
    if writer.layers:
        _describe(writer)
    named = [writer.emit("Identity", writer.values[node]) for node in results]
    described = [_value_info(name, node.meta["val"]) for name, node in zip(named, results, strict=True)]
    final = dict(zip(named, outputs, strict=True))
    for node, name in zip(writer.nodes[-len(named) :], described, strict=True):
        node.output[0] = name.name = final[name.name]
    constants = list(writer.constants.values())
    onnx_graph = helper.make_graph(writer.nodes, "graph", inputs, described, constants)
    return helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", opset)])


def _describe(writer: Writer) -> None:
    """Describes nodes by the shapes of feature maps and kernels, and by the layers that they complete."""
    shapes = {}
    ranks = {inputs[0].meta["val"].dim() for inputs in writer.described}
    for node, name in writer.values.items():
        value = node.meta.get("val")
        if isinstance(name, str) and isinstance(value, Tensor) and value.dim() in ranks:
            shapes[name] = [0 if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
    for node in writer.nodes:
        node.doc_string = description(shapes.get(node.output[0]), writer.layers.get(node.output[0]))


def _value_info(name: str, value: Tensor) -> Any:
    shape = [BATCH if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
    return helper.make_tensor_value_info(name, DTYPES[value.dtype], shape)
