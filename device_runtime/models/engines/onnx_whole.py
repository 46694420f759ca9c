"""Writes a graph and its weights as one ONNX file for other programs, without the `onnx` package.

Field numbers are those of onnx.proto: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.graph_check import delimited_field, fields, number_field
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.quantised import initialisers
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.data.report import describe_input
from device_runtime.models.errors import BundleError

from .onnx_nodes import GRAPH_INITIALISER, MODEL_GRAPH

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
