"""Decodes uncompressed pictures in numpy: BMP of 1, 4, 8, 24 and 32 bits, and binary PGM and PPM."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .picture import Picture, check_size
from .units import Refused

Bytes = NDArray[np.uint8]

FILE_HEADER = 14
OLD_HEADER, LEAST_HEADER = 12, 40
UNPACKED, BY_MASKS = 0, 3
MASKS = (0xFF0000, 0xFF00, 0xFF)
"""Where red, green and blue of a BMP by masks are, as in one without."""
HEADER = re.compile(rb"P([56])(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s)")


def decode_bmp(data: bytes) -> Picture:
    """A BMP without its alpha channel; grey if all colours of its palette are. Raises Refused."""
    if data[:2] != b"BM" or len(data) < FILE_HEADER + OLD_HEADER:
        raise Refused("a damaged picture", "BMP without a header")
    begin, size = struct.unpack_from("<II", data, 10)
    if size == OLD_HEADER:
        width, height, _, bits = struct.unpack_from("<HHHH", data, FILE_HEADER + 4)
        packing, colours, entry = UNPACKED, 0, 3
    elif size >= LEAST_HEADER and len(data) >= FILE_HEADER + LEAST_HEADER:
        width, height, _, bits, packing, _, _, _, colours = struct.unpack_from(
            "<iiHHIIiiI", data, FILE_HEADER + 4
        )
        entry = 4
    else:
        raise Refused("a damaged picture", f"BMP with a header of {size} bytes")
    check_size(width, abs(height))
    if bits not in (1, 4, 8, 24, 32) or not _is_unpacked(data, packing, bits):
        raise Refused(
            "unsupported picture format", f"BMP of {bits} bits, compression {packing}: save it as PNG"
        )
    lines = _lines(data, begin, abs(height), (width * bits + 31) // 32 * 4)
    if bits > 8:
        pixels = lines.reshape(abs(height), -1)[:, : width * bits // 8].reshape(abs(height), width, -1)
        rows: Bytes = pixels[:, :, 2::-1]
    else:
        start = FILE_HEADER + size
        stored = data[start : start + entry * min(colours or 1 << bits, 1 << bits)]
        palette = np.frombuffer(stored[: len(stored) // entry * entry], np.uint8).reshape(-1, entry)
        rows = _by_palette(_small(lines, bits)[:, :width], palette[:, 2::-1])
    return Picture(np.ascontiguousarray(rows if height < 0 else rows[::-1]))


def _is_unpacked(data: bytes, packing: int, bits: int) -> bool:
    if packing == UNPACKED:
        return True
    if packing != BY_MASKS or bits != 32 or len(data) < FILE_HEADER + LEAST_HEADER + 12:
        return False
    return struct.unpack_from("<III", data, FILE_HEADER + LEAST_HEADER) == MASKS


def _lines(data: bytes, begin: int, height: int, wide: int) -> Bytes:
    if len(data) < begin + height * wide:
        raise Refused("a file that ends too early", f"{len(data)} of {begin + height * wide} bytes")
    return np.frombuffer(data, np.uint8, height * wide, begin).reshape(height, wide)


def _small(lines: Bytes, bits: int) -> Bytes:
    """Values of 1, 4 or 8 bits, which are stored with the highest bit first."""
    if bits == 8:
        return lines
    split = np.unpackbits(lines, axis=1).reshape(len(lines), -1, bits)
    values: Bytes = split @ (1 << np.arange(bits)[::-1]).astype(np.uint8)  # stays uint8
    return values


def _by_palette(values: Bytes, palette: Bytes) -> Bytes:
    if values.max() >= len(palette):
        raise Refused("a damaged picture", f"BMP with colour {values.max()} of {len(palette)}")
    grey = (palette == palette[:, :1]).all()
    return palette[values][:, :, :1] if grey else palette[values]


def decode_pnm(data: bytes) -> Picture:
    """A binary PGM (P5) or PPM (P6) of 8 or 16 bits. Raises Refused."""
    header = HEADER.match(data[:4096])
    if header is None:
        raise Refused("a damaged picture", "PGM or PPM without a header")
    channels = 1 if header[1] == b"5" else 3
    width, height, most = (int(header[number][:9]) for number in (2, 3, 4))
    check_size(width, height)
    if most not in (255, 65535):
        raise Refused("unsupported picture format", f"PGM or PPM up to {most}, expected 255 or 65535")
    kind = np.dtype(np.uint8 if most == 255 else ">u2")
    lines = _lines(data, header.end(), height, width * channels * kind.itemsize)
    pixels: NDArray[Any] = lines.reshape(-1).view(kind).reshape(height, width, channels)
    return Picture(pixels.astype(kind.newbyteorder("=")))
