"""Graphs changed field by field for fuzz.py, and what must hold of each that the examiner passes.

A graph is taken apart into fields; some are doubled, moved, exchanged with those of another graph, given
other numbers, or get what a graph may not hold; then it is written again. What passes is read by the onnx
package, which knows nothing of the examiner.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.graph_check import (
    DELIMITED,
    FIXED32,
    FIXED64,
    VARINT,
    check_graph,
    delimited_field,
    fields,
    number,
    varint,
)
from device_runtime.models.errors import BundleError

VECTORS = Path(__file__).parent.parent / "web" / "vectors" / "graphs.json"
MESSAGES = {
    "model": {7: "graph", 8: "opset", 14: "entry", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 15: "sparse", 16: "entry"},
    "node": {5: "attribute", 9: "entry"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "tensor": {13: "entry"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 9: "opset"},
    "training": {1: "graph", 2: "graph"},
    "value": {2: "type"},
    "type": {1: "tensor_type", 4: "type"},
    "tensor_type": {2: "shape"},
    "shape": {1: "dimension"},
}  # fmt: skip
"""Which fields are messages, by onnx.proto."""
WORDS = (
    "location", "offset", "length", "weights", "checksum", "0", "64", "16", "/etc/passwd", "../weights", "",
    "enrolment.json", "/proc/self/mem", "*/_ORT_MEM_ADDR_/*", "Loop", "If", "Scan", "Constant", "Relu", "x",
    "SequenceMap", "EPContext", "PythonOp", "com.microsoft", "ai.onnx", "com.example", "ORTM", "w", "value",
)  # fmt: skip
NUMBERS = (0, 1, 2, 4, 8, 16, 255, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1)

Tree = list[list[Any]]
"""Fields as [number, kind, content]; the content of a message is a tree."""


def sound() -> tuple[bytes, ...]:
    """Those of the test vectors, and two of the smallest graphs of the shipped bundle."""
    examples = json.loads(VECTORS.read_text())["allowed"]
    digits = Bundle.open(shipped_folder("digits-wrn-10-1"))
    return (*(bytes.fromhex(example["graph"]) for example in examples), digits.graph("forward"))


def apart(data: bytes, kind: str = "model") -> Tree:
    """Raises BundleError for what is no message."""
    tree: Tree = []
    for field in fields(data):
        inner = MESSAGES.get(kind, {}).get(field.number)
        if field.kind == VARINT:
            tree.append([field.number, VARINT, number(field)])
        elif field.kind != DELIMITED:
            tree.append([field.number, field.kind, field.encoded[-8 if field.kind == FIXED64 else -4 :]])
        else:
            content = bytes(field.content)
            tree.append([field.number, DELIMITED, apart(content, inner) if inner else content])
    return tree


def together(tree: Tree) -> bytes:
    parts = []
    for field, kind, content in tree:
        if kind == DELIMITED:
            parts.append(delimited_field(field, together(content) if isinstance(content, list) else content))
        else:
            parts.append(varint(field << 3 | kind) + (varint(content) if kind == VARINT else content))
    return b"".join(parts)


class Graphs:
    """Draws graphs; `sound` are those it starts from."""

    def __init__(self) -> None:
        self.sound = sound()
        refused = [bytes.fromhex(example["graph"]) for example in json.loads(VECTORS.read_text())["refused"]]
        self._trees = [tree for data in (*self.sound, *refused) if (tree := _tried(data))]

    def mutated(self, draw: random.Random, graphs: tuple[bytes, ...]) -> bytes:
        """One graph in two hundred is a large one, and one in ten is changed byte by byte as well."""
        small = graphs[:-1] if len(graphs) > 1 else graphs
        data = draw.choice(small) if draw.random() < 0.995 else graphs[-1]
        tree = apart(data)
        for _ in range(draw.choice((1, 1, 2, 3, 6))):
            self._change(draw, tree)
        mutant = together(tree)
        if draw.random() < 0.1 and mutant:
            at = draw.randrange(len(mutant))
            mutant = mutant[:at] + draw.randbytes(draw.randrange(3)) + mutant[at + draw.randrange(3) :]
        return mutant

    def _change(self, draw: random.Random, tree: Tree) -> None:
        place = draw.choice(list(_places(tree)) or [tree])  # all of it may have been taken out
        at = draw.randrange(len(place) + 1)
        match draw.randrange(9):
            case 0 if at < len(place):
                place.insert(draw.randrange(len(place) + 1), _copy(place[at]))
            case 1 if at < len(place):
                del place[at]
            case 2 if at < len(place):
                place.insert(draw.randrange(len(place)), place.pop(at))
            case 3 if at < len(place):
                place[at][0] = draw.choice((*range(1, 27), 99))
            case 4:
                place.insert(at, [draw.randrange(1, 27), VARINT, draw.choice(NUMBERS)])
            case 5:
                place.insert(at, [draw.randrange(1, 27), DELIMITED, draw.choice(WORDS).encode()])
            case 6:
                place.insert(at, _copy(draw.choice(draw.choice(list(_places(draw.choice(self._trees)))))))
            case 7:
                key, value = (draw.choice(WORDS).encode() for _ in range(2))
                place.insert(at, [13, DELIMITED, [[1, DELIMITED, key], [2, DELIMITED, value]]])
                place.insert(at, [14, VARINT, draw.choice((0, 1, 1, 2**32 + 1))])
            case _ if at < len(place):
                _, kind, content = place[at]
                if kind == VARINT:
                    place[at][2] = draw.choice(NUMBERS)
                elif kind in (FIXED32, FIXED64):
                    place[at][2] = draw.randbytes(len(content))
                elif not isinstance(content, list):
                    place[at][2] = draw.choice(WORDS).encode()


def _tried(data: bytes) -> Tree:
    try:
        return apart(data)
    except BundleError:
        return []


def _places(tree: Tree) -> Iterator[Tree]:
    if tree:
        yield tree
    for _, _, content in tree:
        if isinstance(content, list):
            yield from _places(content)


def _copy(field: list[Any]) -> list[Any]:
    content = field[2]
    return [*field[:2], [_copy(inner) for inner in content] if isinstance(content, list) else content]


def examined(data: bytes) -> None:
    """Raises BundleError where the examiner refuses it, AssertionError for one it should have refused."""
    names = check_graph(data)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:  # so does ONNX Runtime, which reads it by the same library
        return
    assert data[4:8] != b"ORTM"
    assert not (model.functions or model.training_info or model.metadata_props)
    assert not model.graph.sparse_initializer
    outside = [tensor for tensor in model.graph.initializer if _is_outside(tensor)]
    assert {tensor.name for tensor in outside} == names and len(outside) == len(names), "other names"
    for tensor in outside:
        entries = [(entry.key, entry.value) for entry in tensor.external_data]
        assert len(entries) == len({key for key, _ in entries}) == 3, entries
        assert dict(entries) | {"length": ""} == {"location": "weights", "offset": "0", "length": ""}, entries
        assert int(dict(entries)["length"]) >= 0, entries
    for node in model.graph.node:
        assert node.op_type not in ("Loop", "If", "Scan", "SequenceMap"), node.op_type
        assert node.domain in ("", "ai.onnx", "com.microsoft"), node.domain
        for attribute in node.attribute:
            assert not (
                attribute.HasField("g")
                or attribute.graphs
                or attribute.HasField("sparse_tensor")
                or attribute.sparse_tensors
            )
            assert not (
                attribute.tensors
                or attribute.ref_attr_name
                or attribute.HasField("tp")
                or attribute.type_protos
            )
            assert not (attribute.HasField("t") and _is_outside(attribute.t)), attribute.name


def _is_outside(tensor: Any) -> bool:
    return bool(tensor.external_data) or tensor.data_location != onnx.TensorProto.DEFAULT
