"""Reads and writes operators of ONNX graphs, and whole ONNX files with weights, without the `onnx` package.

Field numbers are those of onnx.proto: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.graph_check import (
    FIXED32,
    Field,
    delimited_field,
    fields,
    number,
    number_field,
    varint,
)
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.bundles.weights import initialisers
from device_runtime.models.data.report import describe_input
from device_runtime.models.errors import BundleError

MODEL_GRAPH, MODEL_OPSET = 7, 8
GRAPH_NODE, GRAPH_INITIALISER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 5, 11, 12
NODE_INPUT, NODE_OUTPUT, NODE_TYPE, NODE_ATTRIBUTE, NODE_DOC, NODE_DOMAIN = 1, 2, 4, 5, 6, 7
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_STRING = 1, 2, 3, 4
ATTRIBUTE_FLOATS, ATTRIBUTE_INTS, ATTRIBUTE_TYPE = 7, 8, 20
FLOAT, INT, STRING, FLOATS, INTS = 1, 2, 3, 6, 7

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Node:
    """An operator. doc: its free text. encoded: its bytes."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    doc: str = ""
    encoded: bytes = b""

    @cached_property
    def attributes(self) -> Mapping[str, Attribute]:
        """The attributes that are numbers, by name."""
        parts = (part for part in fields(self.encoded) if part.number == NODE_ATTRIBUTE)
        return dict(entry for part in parts for entry in _attribute(part.content).items())


def graph_fields(model: bytes) -> Iterator[Field]:
    """The fields of the model's graph, in order. Raises BundleError if it is no model."""
    for part in fields(model):
        if part.number == MODEL_GRAPH:
            yield from fields(part.content)


def nodes(model: bytes) -> list[Node]:
    """The operators of the model's graph, in order. Raises BundleError if it is no model."""
    return [read_node(field.content) for field in graph_fields(model) if field.number == GRAPH_NODE]


def read_node(content: bytes) -> Node:
    """One operator. Raises BundleError if it is none."""
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_TYPE: [], NODE_DOC: []}
    for part in fields(content):
        if part.number in texts:
            texts[part.number].append(bytes(part.content).decode())
    kind, doc = (texts[which][0] if texts[which] else "" for which in (NODE_TYPE, NODE_DOC))
    return Node(kind, tuple(texts[NODE_INPUT]), tuple(texts[NODE_OUTPUT]), doc, content)


def _attribute(content: bytes) -> dict[str, Attribute]:
    parts: dict[int, list[Field]] = {}
    for part in fields(content):
        parts.setdefault(part.number, []).append(part)
    name = bytes(parts[ATTRIBUTE_NAME][0].content).decode()
    kind = number(parts[ATTRIBUTE_TYPE][0]) if ATTRIBUTE_TYPE in parts else 0
    if kind == INT:
        return {name: _signed(parts[ATTRIBUTE_INT][0])}
    if kind == INTS:
        return {name: tuple(_signed(part) for part in parts.get(ATTRIBUTE_INTS, ()))}
    if kind == FLOAT:
        value: float = struct.unpack("<f", parts[ATTRIBUTE_FLOAT][0].encoded[-4:])[0]
        return {name: value}
    return {}


def _signed(field: Field) -> int:
    value = number(field)
    return value - (1 << 64) if value >> 63 else value


def write_node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, Attribute],
    domain: str = "",
) -> bytes:
    """The bytes of an operator."""
    parts = [delimited_field(NODE_INPUT, name.encode()) for name in inputs]
    parts += [delimited_field(NODE_OUTPUT, name.encode()) for name in outputs]
    parts.append(delimited_field(NODE_TYPE, kind.encode()))
    parts += [delimited_field(NODE_ATTRIBUTE, _written(*entry)) for entry in attributes.items()]
    if domain:
        parts.append(delimited_field(NODE_DOMAIN, domain.encode()))
    return b"".join(parts)


def _written(name: str, value: Attribute) -> bytes:
    if isinstance(value, str):
        kind, content = STRING, delimited_field(ATTRIBUTE_STRING, value.encode())
    elif isinstance(value, int):
        kind, content = INT, _integer(ATTRIBUTE_INT, value)
    elif isinstance(value, float):
        kind, content = FLOAT, _float(ATTRIBUTE_FLOAT, value)
    elif all(isinstance(element, int) for element in value):
        kind, content = INTS, b"".join(_integer(ATTRIBUTE_INTS, int(element)) for element in value)
    else:
        kind, content = FLOATS, b"".join(_float(ATTRIBUTE_FLOATS, element) for element in value)
    return delimited_field(ATTRIBUTE_NAME, name.encode()) + content + number_field(ATTRIBUTE_TYPE, kind)


def _integer(field: int, value: int) -> bytes:
    return number_field(field, value % (1 << 64))


def _float(field: int, value: float) -> bytes:
    return varint(field << 3 | FIXED32) + struct.pack("<f", value)


def renamed_node(content: bytes, names: Mapping[str, str]) -> bytes:
    """The bytes of an operator with new names of values, without its free text."""
    parts = []
    for part in fields(content):
        if part.number in (NODE_INPUT, NODE_OUTPUT):
            name = bytes(part.content).decode()
            parts.append(delimited_field(part.number, names.get(name, name).encode()))
        elif part.number != NODE_DOC:
            parts.append(part.encoded)
    return b"".join(parts)


MODEL_METADATA = 14
TENSOR_SHAPE, TENSOR_TYPE, TENSOR_NAME, TENSOR_BYTES = 1, 2, 8, 9
ENTRY_KEY, ENTRY_VALUE = 1, 2
TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10, "float64": 11}


def graph_with_weights(
    bundle: Bundle, weights: Tensors, metadata: Mapping[str, str], graph: str = "forward"
) -> bytes:
    """A graph of the bundle as an ONNX file, with `weights` inside and `metadata` added.

    Raises BundleError for an unknown graph, or one with parameters as inputs; TensorError if a weight is
    missing.
    """
    entry = bundle.entry(graph)
    if entry.trainable:
        raise BundleError(f"graph {graph} takes its parameters as inputs: it cannot hold them")
    return with_initialisers(bundle.graph(graph), initialisers(entry, weights), metadata)


_OUTPUTS = {
    "classes": "logits, one for each label; softmax gives probabilities",
    "flags": "logits, one for each label; sigmoid gives probabilities",
    "values": "standardised values, one for each label; times std, plus mean of `targets`: original units",
    "input": "the reconstruction of x, flattened",
}


def metadata_of(manifest: Manifest) -> dict[str, str]:
    """Metadata that another program needs to use the file: labels, preprocessing, meaning of the output."""
    spec = manifest.input
    return {
        "name": manifest.name,
        "labels": json.dumps(manifest.labels),
        "input": msgspec.json.encode(spec).decode(),
        "preprocessing": f"{describe_input(spec)}; then x = (raw * scale - mean) / std for each channel",
        "output": _OUTPUTS[manifest.target.compared],
        **({"targets": msgspec.json.encode(target).decode()} if (target := manifest.target).columns else {}),
    }


def with_initialisers(model: bytes, values: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """The ONNX model with these values for the initialisers of these names. Raises BundleError."""
    parts = []
    for field in fields(model):
        if field.number == MODEL_GRAPH:
            parts.append(delimited_field(MODEL_GRAPH, b"".join(_graph(field.content, values))))
        else:
            parts.append(field.encoded)
    for key, value in metadata.items():
        entry = delimited_field(ENTRY_KEY, key.encode()) + delimited_field(ENTRY_VALUE, value.encode())
        parts.append(delimited_field(MODEL_METADATA, entry))
    return b"".join(parts)


def _graph(graph: bytes, values: Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    left = dict(values)
    for field in fields(graph):
        name = _name(field.content) if field.number == GRAPH_INITIALISER else ""
        if name in left:
            yield delimited_field(GRAPH_INITIALISER, encoded_tensor(name, left.pop(name)))
        else:
            yield field.encoded
    if left:
        raise BundleError(f"the graph has no initialiser {sorted(left)[0]!r}")


def _name(tensor: bytes) -> str:
    return next((f.content.decode("utf-8", "replace") for f in fields(tensor) if f.number == TENSOR_NAME), "")


def encoded_tensor(name: str, value: NDArray[Any]) -> bytes:
    if value.dtype.name not in TYPES:
        raise BundleError(f"{name} is {value.dtype}, an ONNX file holds {', '.join(TYPES)}")
    shape = b"".join(number_field(TENSOR_SHAPE, size) for size in value.shape)
    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
    return (
        shape
        + number_field(TENSOR_TYPE, TYPES[value.dtype.name])
        + delimited_field(TENSOR_NAME, name.encode())
        + delimited_field(TENSOR_BYTES, data)
    )
