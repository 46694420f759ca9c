"""BMP as Windows writes it: 8 bits with a palette, 24 and 32 bits, without compression."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from .picture import Picture, check_size
from .source import Refused

DEPTHS = (8, 24, 32)


def decode(data: bytes) -> Picture:
    """Raises Refused for what is damaged, or of another kind."""
    if data[:2] != b"BM" or len(data) < 54:
        raise Refused("a damaged picture", "no BMP, or only its beginning")
    (start,) = struct.unpack_from("<I", data, 10)
    header, width, height, _, depth, packed = struct.unpack_from("<IiiHHI", data, 14)
    upside_down = height > 0  # the last line comes first
    height = abs(height)
    check_size(width, height)
    if depth not in DEPTHS or packed or header < 40:
        raise Refused("a BMP that is not read", f"{depth} bits, compression {packed}")
    wide = (width * depth // 8 + 3) // 4 * 4
    if start + wide * height > len(data):
        raise Refused("a file that ends too early", f"BMP with {len(data)} of {start + wide * height} bytes")
    lines = np.frombuffer(data, np.uint8, wide * height, start).reshape(height, wide)
    lines = lines[::-1] if upside_down else lines
    values = lines[:, : width * depth // 8].reshape(height, width, depth // 8)
    if depth > 8:
        return Picture(values[:, :, 2::-1])
    return Picture(_coloured(values[:, :, 0], data[14 + header : start]))


def _coloured(values: NDArray[np.uint8], table: bytes) -> NDArray[np.uint8]:
    colours = np.frombuffer(table[: len(table) // 4 * 4], np.uint8).reshape(-1, 4)[:, 2::-1]
    if values.max() >= len(colours):
        raise Refused("a damaged picture", f"BMP with colour {values.max()} of {len(colours)}")
    return colours[values]
