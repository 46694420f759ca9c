"""PGM and PPM, as text (P2, P3) and as bytes (P5, P6), up to 16 bits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .picture import Picture, check_size
from .source import Refused

CHANNELS = {b"P2": 1, b"P3": 3, b"P5": 1, b"P6": 3}
TEXTS = (b"P2", b"P3")
LARGEST_TEXT = 1 << 23
"""Bytes: as words in memory they take twenty times as much."""
GAP = rb"(?:\s|#[^\n]*\n)+"
HEADER = re.compile(rb"(P[2356])" + GAP + rb"(\d{1,9})" + GAP + rb"(\d{1,9})" + GAP + rb"(\d{1,6})\s")


def decode(data: bytes) -> Picture:
    """Raises Refused."""
    header = HEADER.match(data)
    if header is None:
        raise Refused("a damaged picture", "no PGM or PPM: it begins neither with P2, P3, P5 nor P6")
    kind, width, height, most = header[1], int(header[2]), int(header[3]), int(header[4])
    check_size(width, height)
    if kind in TEXTS and len(data) > LARGEST_TEXT:
        raise Refused(
            "a picture that is too large", f"{len(data)} bytes of text, {LARGEST_TEXT} are the most"
        )
    if not 0 < most < 1 << 16:
        raise Refused("a damaged picture", f"PGM or PPM whose white is {most}")
    count = width * height * CHANNELS[kind]
    values = _text(data[header.end() :]) if kind in TEXTS else _binary(data[header.end() :], most, count)
    if len(values) < count:
        raise Refused("a file that ends too early", f"{len(values)} of {count} values")
    values = values[:count].reshape(height, width, CHANNELS[kind])
    if values.min() < 0 or values.max() > most:
        raise Refused("a damaged picture", f"values of {values.min()} to {values.max()}, white is {most}")
    return Picture(_full(values, most))


def _binary(data: bytes, most: int, count: int) -> NDArray[Any]:
    kind = np.dtype(np.uint8 if most < 256 else ">u2")
    return np.frombuffer(data, kind, min(count, len(data) // kind.itemsize))


def _text(data: bytes) -> NDArray[Any]:
    words = re.sub(rb"#[^\n]*", b"", data).split()
    try:
        return np.array([int(word[:6]) for word in words], np.int64)
    except ValueError as error:
        raise Refused("a damaged picture", error) from None


def _full(values: NDArray[Any], most: int) -> NDArray[Any]:
    """With white as the largest of its dtype."""
    kind = np.uint8 if most < 256 else np.uint16
    white = np.iinfo(kind).max
    if most == white:
        return values.astype(kind)
    return np.rint(values.astype(np.float64) * (white / most)).astype(kind)
