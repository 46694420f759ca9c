"""Decodes PNG and uncompressed pictures in numpy.

PNG (ISO/IEC 15948): grey, RGB, palette, alpha; 1 to 16 bits, interlaced or not. BMP of 1, 4, 8, 24 and 32
bits, and binary PGM and PPM.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pictures import UPRIGHT, Picture, check_size, orientation, upright
from .units import Refused

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type: grey, RGB, palette, grey and RGB with alpha
PALETTE = 3
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}

PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Adam7: first row and column of the pixels of each pass, and the steps to the next ones."""

Bytes = NDArray[np.uint8]


class _Header(NamedTuple):
    width: int
    height: int
    depth: int
    colour: int
    compression: int
    filtering: int
    interlace: int


def decode(data: bytes) -> Picture:
    """The picture without its alpha channel, turned as its EXIF chunk notes.

    Raises Refused if it is damaged or too large.
    """
    chunks = _chunks(data)
    kind, body = next(chunks, ("", b""))
    if kind != "IHDR" or len(body) != 13:
        raise Refused("a damaged picture", "PNG without a header")
    header = _Header(*struct.unpack(">IIBBBBB", body))
    _check(header)
    palette, packed, turned = b"", [], UPRIGHT
    for kind, body in chunks:
        if kind == "PLTE":
            palette = body
        elif kind == "IDAT":
            packed.append(body)
        elif kind == "eXIf":
            turned = orientation(body)
        elif kind == "IEND":
            break
    else:
        raise Refused("a file that ends too early", "PNG")
    parts = _parts(header)
    unpacked = _unpacked(b"".join(packed), [part for part, _, _ in parts])
    pixels = [_pixels(lines, part, palette) for lines, (part, _, _) in zip(unpacked, parts, strict=True)]
    whole = np.empty((header.height, header.width, pixels[0].shape[2]), pixels[0].dtype)
    for some, (_, rows, columns) in zip(pixels, parts, strict=True):
        whole[rows, columns] = some
    return Picture(upright(whole, turned))


def _parts(header: _Header) -> list[tuple[_Header, slice, slice]]:
    """The pictures that are stored one after the other, and the rows and columns that they are of."""
    if not header.interlace:
        return [(header, slice(None), slice(None))]
    return [
        (
            header._replace(
                height=-(-(header.height - row) // down), width=-(-(header.width - column) // across)
            ),
            slice(row, None, down),
            slice(column, None, across),
        )
        for row, column, down, across in PASSES
        if row < header.height and column < header.width
    ]


def _chunks(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each chunk, as far as the file goes. Raises Refused for a wrong checksum."""
    place = len(SIGNATURE)
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        end = place + 8 + length
        if end + 4 > len(data):
            return
        if zlib.crc32(data[place + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            raise Refused("a damaged picture", "PNG with a wrong checksum")
        yield data[place + 4 : place + 8].decode("latin-1"), data[place + 8 : end]
        place = end + 4


def _check(header: _Header) -> None:
    check_size(header.width, header.height)
    if header.colour not in CHANNELS or header.depth not in DEPTHS[header.colour]:
        raise Refused("a damaged picture", f"PNG of colour type {header.colour}, {header.depth} bits")
    if header.interlace > 1:
        raise Refused("a damaged picture", f"PNG with interlacing {header.interlace}")


def _unpacked(packed: bytes, parts: Sequence[_Header]) -> list[Bytes]:
    """The lines of each part without their filters, (height, bytes of a line). Raises Refused."""
    bits = parts[0].depth * CHANNELS[parts[0].colour]
    forms = [(part.height, (part.width * bits + 7) // 8 + 1) for part in parts]
    size = sum(height * wide for height, wide in forms)
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise Refused("a damaged picture", f"PNG: {error}") from None
    if len(data) < size:
        raise Refused("a file that ends too early", f"PNG with {len(data)} of {size} bytes")
    if len(data) > size:
        raise Refused("a damaged picture", f"PNG with more than its {size} bytes")
    passes, place = [], 0
    for height, wide in forms:
        filtered = np.frombuffer(data, np.uint8, height * wide, place).reshape(height, wide)
        if filtered[:, 0].max() > 4:
            raise Refused("a damaged picture", f"PNG with filter {filtered[:, 0].max()}")
        passes.append(_unfiltered(filtered[:, 0], filtered[:, 1:], max(1, bits // 8)))
        place += height * wide
    return passes


def _unfiltered(filters: Bytes, lines: Bytes, pixel: int) -> Bytes:
    """Adds to each byte its prediction from the pixels left, above and above left, one diagonal at a time.

    The picture is padded with a line of zeros above and a column of zeros on the left. Then the pixels of a
    diagonal are equally far apart in memory, and depend only on the two diagonals before.
    """
    height, columns = len(lines), lines.shape[1] // pixel
    if not filters.any():
        return lines
    padded = np.zeros((height + 1, columns + 1, pixel), np.uint8)
    padded[1:, 1:] = lines.reshape(height, columns, pixel)
    flat = padded.reshape(-1, pixel)
    for diagonal in range(height + columns - 1):
        first, last = max(0, diagonal - columns + 1), min(diagonal, height - 1)
        at = (first + 1) * (columns + 1) + diagonal - first + 1 + columns * np.arange(last - first + 1)
        left, above, corner = (flat[at - back].astype(np.int16) for back in (1, columns + 1, columns + 2))
        kinds = filters[first : last + 1, None]
        flat[at] += _predicted(kinds, left, above, corner).astype(np.uint8)
    return padded[1:, 1:].reshape(height, -1)


def _predicted(
    kinds: Bytes, left: NDArray[np.int16], above: NDArray[np.int16], corner: NDArray[np.int16]
) -> NDArray[np.int16]:
    """The prediction of filters 0 to 4: nothing, left, above, their mean, Paeth's choice of the three."""
    from_left, from_above = np.abs(above - corner), np.abs(left - corner)
    from_corner = np.abs(left + above - 2 * corner)
    nearest = np.where(
        (from_left <= from_above) & (from_left <= from_corner),
        left,
        np.where(from_above <= from_corner, above, corner),
    )
    guesses = (np.int16(0), left, above, (left + above) >> 1, nearest)
    predictions: NDArray[np.int16] = np.choose(kinds, guesses)
    return predictions


def _pixels(lines: Bytes, header: _Header, palette: bytes) -> NDArray[Any]:
    """The pixels (height, width, 1 or 3), uint8 or uint16."""
    height, width, channels = header.height, header.width, CHANNELS[header.colour]
    if header.depth == 16:
        values: NDArray[Any] = np.ascontiguousarray(lines).view(">u2").astype(np.uint16)
    elif header.depth == 8:
        values = lines
    else:
        values = _small(lines, header.depth)[:, : width * channels]
        if header.colour != PALETTE:
            values = values * np.uint8(255 // ((1 << header.depth) - 1))
    values = values.reshape(height, width, channels)
    if header.colour == PALETTE:
        colours = np.frombuffer(palette[: len(palette) // 3 * 3], np.uint8).reshape(-1, 3)
        if values.max() >= len(colours):
            raise Refused("a damaged picture", f"PNG with colour {values.max()} of {len(colours)}")
        values = colours[values[:, :, 0]]
    return values[:, :, : 3 if values.shape[2] >= 3 else 1]


def _small(lines: Bytes, depth: int) -> Bytes:
    """Unpacks values of 1, 2, 4 or 8 bits, which are stored with the highest bit first."""
    if depth == 8:
        return lines
    bits = np.unpackbits(lines, axis=1).reshape(len(lines), -1, depth)
    values: Bytes = bits @ (1 << np.arange(depth)[::-1]).astype(np.uint8)  # stays uint8
    return values


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
