"""Checks a graph before a session is made: it may hold only what allowed_graphs.json lists.

Whoever offers a round chooses the graphs. ONNX Runtime would read any file that a graph names, and run loops
that never end. So fields, operators and types that are not listed are refused, and the only data outside the
graph are the arrays that the session is given in memory. web/device/graph_check.js does the same.

ONNX files are protocol buffers, https://protobuf.dev/programming-guides/encoding/; the first half of this
module reads and writes as much of that format as they need.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

from device_runtime.models.errors import BundleError

# Fields of protocol buffers.

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MOST_BITS = 64
MOST_NUMBER = (1 << 29) - 1
"""The largest number of a field."""


class Field(NamedTuple):
    """One field. content: the bytes of a DELIMITED field, else empty. encoded: all of it, with its tag."""

    number: int
    kind: int
    content: bytes
    encoded: bytes


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message, in order. Raises BundleError if it is no protocol buffer."""
    place = 0
    while place < len(message):
        begin = place
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if number > MOST_NUMBER:
            raise BundleError(f"no protocol buffer: a field with the number {number} at byte {begin}")
        start = place
        if kind == VARINT:
            _, place = _varint(message, place)
        elif kind == DELIMITED:
            size, start = _varint(message, place)
            place = start + size
        elif kind in (FIXED32, FIXED64):
            place += 4 if kind == FIXED32 else 8
        else:
            raise BundleError(f"no protocol buffer: a field of kind {kind} at byte {begin}")
        if place > len(message):
            raise BundleError(f"a protocol buffer ends at byte {len(message)} within a field")
        content = message[start:place] if kind == DELIMITED else b""
        yield Field(number, kind, content, message[begin:place])


def number(field: Field) -> int:
    """The value of a VARINT field. Raises BundleError if it holds none."""
    _, place = _varint(field.encoded, 0)
    return _varint(field.encoded, place)[0]


def number_field(number: int, value: int) -> bytes:
    """Encodes a field with a number, 0 or more."""
    return varint(number << 3 | VARINT) + varint(value)


def delimited_field(number: int, content: bytes) -> bytes:
    """Encodes a field with a string, bytes or a message."""
    return varint(number << 3 | DELIMITED) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Encodes a number with seven bits a byte, the lowest first."""
    if 0 <= value <= 0x7F:
        return _SMALL[value]
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


_SMALL = [bytes([value]) for value in range(0x80)]


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, and the place after it."""
    if place < len(message) and message[place] < 0x80:
        return message[place], place + 1
    value = shift = 0
    while place < len(message) and shift < MOST_BITS:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise BundleError(f"a protocol buffer has no number at byte {place}")


# The check of a graph.

WIRES = {"varint": VARINT, "fixed32": FIXED32, "delimited": DELIMITED}
OTHER_FORMAT = b"ORTM"
"""A file with these bytes from byte 4 on may be read in ONNX Runtime's own format, not as protobuf."""

LARGEST = 2**53
"""Larger numbers are not printed, because a browser cannot represent them exactly."""

Message = Mapping[str, Sequence[Any]]
"""The values of each field by its name: numbers, strings or messages; empty for a field that is absent."""


@dataclass(frozen=True)
class _Rule:
    """What a field may hold: numbers of a range or a set, at most `most` bytes, or a message."""

    name: str
    wire: str
    needed: bool = False
    times: int = 1
    most: int | None = None
    message: str = ""
    least: int | None = None
    largest: int = 0
    one_of: frozenset[int] = frozenset()


class _Table:
    """allowed_graphs.json, read when the first graph is checked."""

    @cached_property
    def content(self) -> Mapping[str, Any]:
        table: Mapping[str, Any] = json.loads(Path(__file__).with_name("allowed_graphs.json").read_bytes())
        return table

    @cached_property
    def messages(self) -> Mapping[str, Mapping[int, _Rule]]:
        return {
            message: {int(field): _rule(**rule) for field, rule in rules.items()}
            for message, rules in self.content["messages"].items()
        }

    @cached_property
    def operators(self) -> Mapping[str, frozenset[str]]:
        return {domain: frozenset(names) for domain, names in self.content["operators"].items()}


def _rule(one_of: Sequence[int] = (), to: int = 0, **rest: Any) -> _Rule:
    least = rest.pop("from", None)
    return _Rule(one_of=frozenset(one_of), least=least, largest=to, **rest)


_TABLE = _Table()


def check_graph(onnx: bytes, *, optimised: bool = False) -> frozenset[str]:
    """Checks a graph, and gives the names of the initialisers that the session must be given in memory.

    optimised: ONNX Runtime wrote the graph on this machine, from one that passed, and added its own
    operators, which are not checked. Raises BundleError for a graph with anything that is not allowed.
    """
    most = _TABLE.content["most_bytes"]
    if len(onnx) > most:
        raise BundleError(f"it has {len(onnx)} bytes, at most {most} are read")
    if onnx[4:8] == OTHER_FORMAT:
        raise BundleError("it is in ONNX Runtime's own format, expected ONNX")
    model = _Reader().read(cast(bytes, memoryview(onnx)), "model")
    [graph] = model["graph"]
    if not optimised:
        _check_domains(model)
        for node in graph["node"]:
            _check_operator(node)
    for node in graph["node"]:
        _check_attributes(node)
    _check_names(graph)
    return frozenset(_outside(graph))


class _Reader:
    """Reads messages by the rules of the table, and counts their fields."""

    def __init__(self) -> None:
        self._left: int = _TABLE.content["most_fields"]

    def read(self, data: bytes, kind: str) -> Message:
        """Reads one message.

        Raises BundleError for a field that is not allowed, occurs too often, or is missing.
        """
        rules = _TABLE.messages[kind]
        message: dict[str, list[Any]] = {rule.name: [] for rule in rules.values()}
        for field in fields(data):
            self._left -= 1
            if self._left < 0:
                raise BundleError(f"it has more than {_TABLE.content['most_fields']} fields")
            rule = rules.get(field.number)
            if rule is None:
                raise BundleError(_unknown(kind, field.number))
            if field.kind != WIRES[rule.wire]:
                raise BundleError(f"{rule.name} of {_a(kind)} is of kind {field.kind}, expected {rule.wire}")
            values = message[rule.name]
            if len(values) == rule.times:
                raise BundleError(f"{_a(kind)} has {rule.name} more than {_times(rule.times)}")
            if rule.message:
                values.append(self.read(field.content, rule.message))
            elif rule.wire == "delimited":
                values.append(_text(kind, rule, field.content))
            else:
                values.append(_number(kind, rule, number(field)) if rule.wire == "varint" else None)
        if missing := next(
            (rule.name for rule in rules.values() if rule.needed and not message[rule.name]), ""
        ):
            raise BundleError(f"{_a(kind)} has no {missing}")
        return message


def _unknown(kind: str, field: int) -> str:
    refusal = _TABLE.content["refused"].get(kind, {}).get(str(field))
    return f"{_a(kind)} has {refusal or f'field {field}'}, which is not allowed"


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _text(kind: str, rule: _Rule, content: bytes) -> str:
    if rule.most is None:  # tensor data, whose content is free
        return ""
    if len(content) > rule.most:
        raise BundleError(f"{rule.name} of {_a(kind)} has {len(content)} bytes, at most {rule.most} are read")
    try:
        return bytes(content).decode()
    except UnicodeDecodeError:
        raise BundleError(f"{rule.name} of {_a(kind)} is not UTF-8: {bytes(content[:40]).hex()}") from None


def _number(kind: str, rule: _Rule, value: int) -> int:
    text = value if value <= LARGEST else "beyond 2**53"
    if rule.one_of and value not in rule.one_of:
        raise BundleError(f"{rule.name} of {_a(kind)} is {text}, expected one of {_listed(rule.one_of)}")
    if rule.least is not None and not rule.least <= value <= rule.largest:
        raise BundleError(f"{rule.name} of {_a(kind)} is {text}, expected {rule.least} to {rule.largest}")
    return value


def _listed(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _check_domains(model: Message) -> None:
    domains = [_domain(entry) for entry in model["opset_import"]]
    for index, domain in enumerate(domains):
        if domain not in _TABLE.operators:
            raise BundleError(f"it takes operators of {_printable(domain)}, which are not allowed")
        if domain in domains[:index]:
            raise BundleError(f"it takes operators of {_printable(domain)} twice")


def _check_operator(node: Message) -> None:
    domain, operator = _domain(node), node["op_type"][0]
    if operator not in _TABLE.operators.get(domain, ()):
        whole = f"{domain}.{operator}" if domain else operator
        if operator in _TABLE.content["random"]:
            raise BundleError(f"operator {whole} draws random numbers, which is not allowed")
        raise BundleError(f"operator {_printable(whole)} is not allowed")
    if operator in _TABLE.content["all_inputs"] and "" in node["input"]:  # ONNX Runtime would read address 0
        raise BundleError(f"operator {operator} has an input without a name")


def _domain(message: Message) -> str:
    """The operator domain; ONNX's own has two names, "" and "ai.onnx"."""
    domain: str = message["domain"][0] if message["domain"] else ""
    return "" if domain == "ai.onnx" else domain


def _check_attributes(node: Message) -> None:
    """Checks that each attribute occurs once, with a value of its type and no other."""
    names = set()
    for attribute in node["attribute"]:
        [name], [kind] = attribute["name"], attribute["type"]
        if name in names:
            raise BundleError(f"a node has attribute {_printable(name)} twice")
        names.add(name)
        named = _TABLE.content["value_of_type"]
        for other in named.values():
            if attribute[other] and other != named[str(kind)]:
                raise BundleError(f"attribute {_printable(name)} is of type {kind} and has {other}")


def _check_names(graph: Message) -> None:
    """Checks that every value is made only once: by an input, an initialiser or a node."""
    names: set[str] = set()
    for name in chain(
        _names(graph["input"]),
        _names(graph["initializer"]),
        (output for node in graph["node"] for output in node["output"] if output),
    ):
        if name in names:
            raise BundleError(f"value {_printable(name)} is made twice")
        names.add(name)


def _names(messages: Sequence[Message]) -> Iterator[str]:
    return (message["name"][0] for message in messages)


def _outside(graph: Message) -> Iterator[str]:
    """The initialisers without data in the graph.

    Raises BundleError for one that names a real file, or another length than its shape gives.
    """
    for tensor in graph["initializer"]:
        name = tensor["name"][0]
        if tensor["data_location"] in ([], [0]):
            if tensor["external_data"]:
                raise BundleError(f"initialiser {_printable(name)} has data, and names a file")
            continue
        if any(tensor[data] for data in _TABLE.content["data"]):
            raise BundleError(f"initialiser {_printable(name)} has data inside and outside")
        entries = {entry["key"][0]: entry["value"][0] for entry in tensor["external_data"]}
        length = prod(tensor["dims"]) * _TABLE.content["element_bytes"][str(tensor["data_type"][0])]
        if length > _TABLE.content["most_tensor_bytes"]:
            raise BundleError(f"initialiser {_printable(name)} has too many bytes")
        expected = {**_TABLE.content["outside"], "length": str(length)}
        if entries != expected:
            raise BundleError(
                f"initialiser {_printable(name)} lies in {_entries(entries)}, expected {_entries(expected)}"
            )
        yield name


def _entries(entries: Mapping[str, str]) -> str:
    return (
        ", ".join(f"{_printable(key)} {_printable(value)}" for key, value in sorted(entries.items()))
        or "no file"
    )


def _printable(text: str) -> str:
    """The text as one printable line of at most 80 characters, more if escaped."""
    plain = text[:80]
    return plain if plain.isprintable() and plain else repr(plain)
