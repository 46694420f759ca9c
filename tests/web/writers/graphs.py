"""Graphs that are allowed, with what they take from outside, and graphs that are not, with why not."""

from typing import Any

from device_runtime.models.bundles.graph_check import (
    FIXED32,
    check_graph,
    delimited_field,
    number_field,
    varint,
)
from device_runtime.models.errors import BundleError

FLOAT, INT64, STRING = 1, 7, 8


def message(*fields: tuple[int, Any]) -> bytes:
    return b"".join(
        number_field(n, v)
        if isinstance(v, int)
        else delimited_field(n, v.encode() if isinstance(v, str) else v)
        for n, v in fields
    )


def value(name: str, kind: int = FLOAT) -> bytes:
    shape = message((1, message((2, "batch"))), (1, message((1, 16))))
    return message((1, name), (2, message((1, message((1, kind), (2, shape))))))


def attribute(name: str, number: int, content: Any, kind: int) -> tuple[int, bytes]:
    return 5, message((1, name), (number, content), (20, kind))


def node(operator: str, inputs: str = "x", outputs: str = "y", *more: tuple[int, Any]) -> tuple[int, bytes]:
    names = [(1, name) for name in inputs.split()] + [(2, name) for name in outputs.split()]
    return 1, message(*names, (4, operator), *more)


def inside(name: str = "w", kind: int = FLOAT, *more: tuple[int, Any]) -> tuple[int, bytes]:
    return 5, message((1, 16), (2, kind), (8, name), (9, bytes(64)), *more)


def entries(**texts: str) -> list[tuple[int, bytes]]:
    return [(13, message((1, key), (2, text))) for key, text in texts.items()]


WEIGHTS = {"location": "weights", "offset": "0", "length": "64"}


def outside(*more: tuple[int, Any], name: str = "w", where: Any = 1, **texts: str) -> tuple[int, bytes]:
    placed = entries(**(texts or WEIGHTS))
    return 5, message((1, 16), (2, FLOAT), (8, name), *placed, (14, where), *more)


BARE = ((1, 16), (2, FLOAT), (8, "w"), (14, 1))
"""An initialiser that lies outside, without where."""
MAX = node("Max", "x w")
RELU = node("Relu")
OPSET = (8, message((1, ""), (2, 20)))
WHOLE = (11, value("x")), (12, value("y"))


def graph(*parts: tuple[int, Any]) -> bytes:
    return message(*parts, *WHOLE)


def whole(x: bytes) -> bytes:
    """With another input."""
    return message((1, 10), (7, message(RELU, (11, x), (12, value("y")))), OPSET)


def model(*parts: tuple[int, Any], opsets: tuple[tuple[int, bytes], ...] = (OPSET,)) -> bytes:
    return message((1, 10), (7, graph(*parts)), *opsets)


FILE = message(*entries(location="enrolment.json", offset="0", length="64"))
TENSOR = message((1, 16), (2, FLOAT), (9, bytes(64)))
FAR = message((1, 16), (2, FLOAT), (13, message((1, "location"), (2, "/etc/passwd"))), (14, 1))
BODY = message(RELU)

ALLOWED = {
    "one node": (model(RELU), []),
    "a weight that is given": (model(MAX, outside()), ["w"]),
    "a weight inside": (model(MAX, inside()), []),
    "where it lies is said to be here": (model(MAX, inside("w", FLOAT, (14, 0))), []),
    "a constant": (model(node("Constant", "", "w", attribute("value", 5, TENSOR, 4)), MAX), []),
    "attributes": (
        model(
            node(
                "Conv",
                "x w",
                "y",
                attribute("pads", 8, 1, 7),
                attribute("auto_pad", 4, "NOTSET", 3),
                attribute("group", 3, 1, 2),
            ),
            inside(),
        ),
        [],
    ),
    "the domain by its other name": (model(RELU, opsets=((8, message((1, "ai.onnx"), (2, 20))),)), []),
    "gradients of ONNX Runtime": (
        model(
            node("ReluGrad", "x x", "y", (7, "com.microsoft")),
            opsets=(OPSET, (8, message((1, "com.microsoft"), (2, 1)))),
        ),
        [],
    ),
    "an output that is left out": (
        model(node("MaxPool", "x", "y"), (1, message((1, "x"), (2, ""), (4, "Relu")))),
        [],
    ),
}

REFUSED = {
    "rubbish": (b"not onnx", "no protocol buffer"),
    "nothing": (b"", "a model has no ir_version"),
    "no graph": (message((1, 10), OPSET), "a model has no graph"),
    "two graphs, which would be merged": (
        message((1, 10), (7, graph(RELU)), (7, message(outside())), OPSET),
        "a model has graph more than once",
    ),
    "two types, which would be merged": (
        whole(value("x") + value("x")[3:]),
        "a value has type more than once",
    ),
    "another format": (b"\x12\x85\x80\x00ORTM0" + model(RELU), "it is in ONNX Runtime's own format"),
    "of an old version": (
        message((1, 3), (7, graph(RELU)), OPSET),
        "ir_version of a model is 3, expected 4 to 20",
    ),
    "a field that is not known": (
        model(RELU) + message((99, "x")),
        "a model has field 99, which is not allowed",
    ),
    "a group": (model(RELU) + varint(7 << 3 | 3), "no protocol buffer: a field of kind 3"),
    "a field of another kind": (
        message((1, 10), OPSET) + varint(7 << 3 | FIXED32) + bytes(4),
        "graph of a model is of kind 5, expected delimited",
    ),
    "a relative file": (
        model(MAX, outside(location="enrolment.json", offset="0", length="64")),
        "initialiser w lies in length 64, location enrolment.json, offset 0, expected length 64, location",
    ),
    "an absolute path": (model(MAX, outside(location="/etc/passwd")), "location /etc/passwd, expected"),
    "a path upwards": (model(MAX, outside(location="../../weights")), "location ../../weights, expected"),
    "memory of the process": (
        model(MAX, outside(location="/proc/self/mem", offset="4096", length="64")),
        "location /proc/self/mem, offset 4096, expected",
    ),
    "an address in memory": (
        model(MAX, outside(location="*/_ORT_MEM_ADDR_/*", offset="4096", length="64")),
        "location */_ORT_MEM_ADDR_/*, offset 4096, expected",
    ),
    "another place in it": (
        model(MAX, outside(location="weights", offset="4096", length="64")),
        "offset 4096, expected",
    ),
    "longer than it is": (
        model(MAX, outside(location="weights", offset="0", length="65")),
        "length 65, location",
    ),
    "said twice": (
        model(MAX, outside(*entries(location="other"))),
        "an initialiser has external_data more than 3 times",
    ),
    "two entries in one": (
        model(MAX, (5, message(*BARE, (13, message((1, "location"), (2, "weights"), (2, "/etc/passwd")))))),
        "an entry has value more than once",
    ),
    "one place twice and none of its length": (
        model(
            MAX,
            (5, message(*BARE, *entries(location="a"), *entries(location="weights"), *entries(offset="0"))),
        ),
        "initialiser w lies in location weights, offset 0, expected",
    ),
    "one entry that reads like three": (
        model(MAX, outside(length="64, location weights, offset 0")),
        "lies in length 64, location weights, offset 0, expected length 64",
    ),
    "outside and nowhere": (model(MAX, (5, message(*BARE))), "initialiser w lies in no file, expected"),
    "data, and a file": (
        model(MAX, inside("w", FLOAT, (13, message((1, "location"), (2, "a"))))),
        "initialiser w has data, and names a file",
    ),
    "data inside and outside": (
        model(MAX, outside((9, bytes(64)))),
        "initialiser w has data inside and outside",
    ),
    "a place beyond 32 bits": (
        model(MAX, outside(where=2**32 + 1)),
        "data_location of an initialiser is 4294967297, expected one of 0, 1",
    ),
    "a place said twice": (model(MAX, outside((14, 0))), "an initialiser has data_location more than once"),
    "an initialiser of terabytes": (
        model(
            MAX,
            (5, message((1, 2**31 - 1), (1, 2**31 - 1), (2, FLOAT), (8, "w"), *entries(**WEIGHTS), (14, 1))),
        ),
        "initialiser w has too many bytes",
    ),
    "a size below 0": (
        model(MAX, (5, message((1, 2**64 - 1), (2, FLOAT), (8, "w")))),
        "dims of an initialiser is beyond 2**53, expected 0 to 2147483647",
    ),
    "no name": (model(MAX, (5, message((1, 16), (2, FLOAT), (9, bytes(64))))), "an initialiser has no name"),
    "an initialiser twice": (model(MAX, outside(), inside()), "value w is made twice"),
    "an initialiser that is an input": (model(RELU, outside(name="x")), "value x is made twice"),
    "an initialiser that a node makes": (
        model(node("Constant", "", "w", attribute("value", 5, TENSOR, 4)), MAX, outside()),
        "value w is made twice",
    ),
    "strings": (model(MAX, inside("w", STRING)), "data_type of an initialiser is 8, expected one of 1, 2, 3"),
    "an input of strings": (
        whole(value("x", STRING)),
        "elem_type of a tensor_type is 8, expected",
    ),
    "a sequence": (
        whole(message((1, "x"), (2, message((4, b""))))),
        "a type has a sequence, which is not allowed",
    ),
    "a sparse initialiser": (
        model(RELU, (15, b"")),
        "a graph has a sparse initialiser, which is not allowed",
    ),
    "a constant outside": (
        model(node("Constant", "", "w", attribute("value", 5, FAR, 4)), MAX),
        "a tensor has data that lie outside, which is not allowed",
    ),
    "a constant that only says so": (
        model(node("Constant", "", "w", attribute("value", 5, TENSOR + message((14, 1)), 4)), MAX),
        "data_location of a tensor is 1, expected one of 0",
    ),
    "a sparse constant": (
        model(node("Constant", "", "w", attribute("sparse_value", 22, b"", 11)), MAX),
        "an attribute has a sparse tensor, which is not allowed",
    ),
    "an attribute of many tensors": (
        model(node("Relu", "x", "y", attribute("more", 10, FAR, 9))),
        "an attribute has a list of tensors",
    ),
    "an attribute of two values": (
        model(node("Relu", "x", "y", (5, message((1, "a"), (3, 1), (5, TENSOR), (20, 2))))),
        "attribute a is of type 2 and has t",
    ),
    "an attribute of no type": (
        model(node("Relu", "x", "y", (5, message((1, "a"), (3, 1))))),
        "an attribute has no type",
    ),
    "an attribute twice": (
        model(node("Relu", "x", "y", attribute("a", 3, 1, 2), attribute("a", 3, 1, 2))),
        "a node has attribute a twice",
    ),
    "a loop": (
        model(node("Loop", "x x x", "y", attribute("body", 6, BODY, 5))),
        "an attribute has a graph within it",
    ),
    "a loop without its body": (model(node("Loop")), "operator Loop is not allowed"),
    "a branch": (model(node("If", "x", "y", attribute("then_branch", 6, BODY, 5))), "a graph within it"),
    "a scan": (model(node("Scan")), "operator Scan is not allowed"),
    "graphs in an attribute": (
        model(node("Relu", "x", "y", attribute("a", 11, BODY, 10))),
        "an attribute has graphs within it",
    ),
    "a reference in an attribute": (
        model(node("Relu", "x", "y", attribute("a", 21, "b", 2))),
        "an attribute has a reference",
    ),
    "functions": (model(RELU) + message((25, b"")), "a model has functions of its own, which is not allowed"),
    "training information": (model(RELU) + message((20, b"")), "a model has training information"),
    "metadata, which may hold settings of ONNX Runtime": (
        model(RELU) + message((14, message((1, "ort_config"), (2, "{}")))),
        "a model has metadata",
    ),
    "an input that cannot be left out": (
        model((1, message((1, "x"), (1, ""), (2, "y"), (4, "Max")))),
        "operator Max has an input without a name",
    ),
    **{
        f"an operator that draws: {name}": (
            model(node(name)),
            f"operator {name} draws random numbers, which is not allowed",
        )
        for name in ("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniform")
    },
    "an operator that is not known": (model(node("Print")), "operator Print is not allowed"),
    "an operator of another domain": (
        model(node("Relu", "x", "y", (7, "com.example"))),
        "operator com.example.Relu is not allowed",
    ),
    "an operator that reads files": (
        model(node("EPContext", "x", "y", (7, "com.microsoft"))),
        "operator com.microsoft.EPContext is not allowed",
    ),
    "a domain that is not known": (
        model(RELU, opsets=(OPSET, (8, message((1, "com.example"), (2, 1))))),
        "it takes operators of com.example, which are not allowed",
    ),
    "a domain by both of its names": (
        model(RELU, opsets=(OPSET, (8, message((1, "ai.onnx"), (2, 9))))),
        "it takes operators of '' twice",
    ),
    "no domain": (model(RELU, opsets=()), "a model has no opset_import"),
    "a name that is not text": (
        model(MAX, (5, message((1, 16), (2, FLOAT), (8, b"\xff\xfe"), *entries(**WEIGHTS), (14, 1)))),
        "name of an initialiser is not UTF-8: fffe",
    ),
    "a name of some length": (model(node("R" * 10_001)), "op_type of a node has 10001 bytes, at most 10000"),
    "cut within": (model(RELU)[:-3], "within a field"),
}


def refusal(onnx: bytes, words: str) -> str:
    try:
        check_graph(onnx)
    except BundleError as error:
        assert words in str(error), f"{words!r} is not in {str(error)!r}"
        return str(error)
    raise AssertionError(f"it is allowed, expected {words}")


def vectors() -> dict[str, Any]:
    for name, (onnx, names) in ALLOWED.items():
        assert sorted(check_graph(onnx)) == names, name
    return {
        "allowed": [
            {"name": name, "graph": onnx, "outside": outside_names}
            for name, (onnx, outside_names) in ALLOWED.items()
        ],
        "refused": [
            {"name": name, "graph": onnx, "python": refusal(onnx, words)}
            for name, (onnx, words) in REFUSED.items()
        ],
    }
