"""Protocol buffers on the wire, as far as ONNX files need them: fields of a message, read and written.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import NamedTuple

from device_runtime.models.errors import BundleError

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MOST_BITS = 64
MOST_NUMBER = (1 << 29) - 1
"""Of a field."""


class Field(NamedTuple):
    """One field: `content` of a DELIMITED one, else empty; `encoded` is all of it, its tag included."""

    number: int
    kind: int
    content: bytes
    encoded: bytes


def fields(message: bytes) -> Iterator[Field]:
    """In the order of the message. Raises BundleError for what is none."""
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
    """What a VARINT field holds. Raises BundleError for what is none."""
    _, place = _varint(field.encoded, 0)
    return _varint(field.encoded, place)[0]


def number_field(number: int, value: int) -> bytes:
    """A field that is a number, 0 or more."""
    return varint(number << 3 | VARINT) + varint(value)


def delimited_field(number: int, content: bytes) -> bytes:
    """A field that is a string, bytes or a message."""
    return varint(number << 3 | DELIMITED) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, and where the next begins."""
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
