"""Decodes JPEG by libjpeg-turbo, at the smallest of its scales that still has more pixels than the input."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .exif import UPRIGHT, lies_on_its_side, orientation, upright
from .picture import LARGEST_PIXELS, LARGEST_SIDE, Picture, check_size, need_picture
from .units import Refused

LARGEST_CODED = 1 << 28
"""A photo of at most so many pixels is decoded, if no more than LARGEST_PIXELS of them are made.

libjpeg-turbo holds a few lines of it; of a progressive one it holds all coefficients, so that
LARGEST_PROGRESSIVE is the limit.
"""
LARGEST_PROGRESSIVE = 1 << 25
FINER = 2
"""The decoded picture has at least so many times the input's pixels a side, where the photo has them."""

START, SCAN, END = 0xD8, 0xDA, 0xD9
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # these three are tables
PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
EXIF = b"Exif\0\0"
COLOURS = {1: "grey", 3: "RGB", 4: "CMYK"}
SPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}
LEAST_ROWS = 1


@dataclass(frozen=True)
class Photo:
    """A JPEG file whose header was read; it is decoded for an input.

    turned: its EXIF orientation, 1 to 8.
    """

    data: bytes
    width: int
    height: int
    channels: int
    turned: int = UPRIGHT

    @property
    def form(self) -> str:
        width, height = self.width, self.height
        if lies_on_its_side(self.turned):
            width, height = height, width
        return f"picture {width}x{height} {COLOURS[self.channels]} 8 bits"

    def raw(self, spec: InputSpec) -> NDArray[Any]:
        """(1, channels, height, width), as `Picture.raw`. Raises Refused for a damaged photo as well."""
        need_picture(spec)
        _, height, width = spec.shape
        return self.picture(height, width).raw(spec)

    def picture(self, height: int | None = None, width: int | None = None) -> Picture:
        """The photo, turned as its camera noted: whole, or reduced for an input of this size.

        Raises Refused.
        """
        if height is None or width is None:
            least = (0, 0)
        else:
            size = (width, height) if lies_on_its_side(self.turned) else (height, width)
            least = self._least(*size)
        pixels = _decoded(self.data, SPACES[self.channels], least)
        if self.channels == 4:  # Adobe's: inverted, so that 255 is no ink
            ink, black = pixels[:, :, :3].astype(np.uint16), pixels[:, :, 3:].astype(np.uint16)
            pixels = ((ink * black + 127) // 255).astype(np.uint8)
        return Picture(upright(pixels, self.turned))

    def _least(self, height: int, width: int) -> tuple[int, int]:
        """The least height and width to decode: FINER times the input's, for the largest central part."""
        scale = FINER * max(height / self.height, width / self.width)
        if scale >= 1:
            return 0, 0
        return max(LEAST_ROWS, ceil(scale * self.height)), max(LEAST_ROWS, ceil(scale * self.width))


def decode(data: bytes) -> Photo:
    """Reads the header of a JPEG; of several pictures (MPO) that of the first. Raises Refused."""
    turned = UPRIGHT
    for marker, body in _segments(data):
        if marker == 0xE1 and body.startswith(EXIF) and turned == UPRIGHT:
            turned = orientation(body[len(EXIF) :])
        elif marker in FRAMES:
            return _photo(data, marker, body, turned)
    raise Refused("a file that ends too early", "JPEG without a picture")


def _photo(data: bytes, marker: int, body: bytes, turned: int) -> Photo:
    if len(body) < 6:
        raise Refused("a damaged picture", "JPEG with a short frame header")
    bits, height, width, channels = struct.unpack_from(">BHHB", body)
    if bits != 8 or channels not in COLOURS:
        raise Refused("unsupported picture format", f"JPEG of {bits} bits, {channels} channels")
    most = LARGEST_PROGRESSIVE if marker in PROGRESSIVE else LARGEST_CODED
    if max(width, height) > LARGEST_SIDE or width * height > most:
        raise Refused("a picture that is too large", f"JPEG {width}x{height}, {most} pixels are the most")
    if width < 1 or height < 1:
        check_size(width, height)
    return Photo(data, width, height, channels, turned)


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and content of each segment before the first scan. Raises Refused for what is no JPEG."""
    if data[:2] != b"\xff\xd8":
        raise Refused("a damaged picture", f"no JPEG: it begins with {data[:8]!r}")
    place = 2
    while place + 4 <= len(data):
        if data[place] != 0xFF:
            raise Refused("a damaged picture", f"JPEG without a marker at byte {place}")
        marker = data[place + 1]
        if marker == 0xFF:  # filling
            place += 1
            continue
        if marker in (SCAN, END):
            return
        if marker in ALONE:
            place += 2
            continue
        (length,) = struct.unpack_from(">H", data, place + 2)
        if length < 2:
            raise Refused("a damaged picture", f"JPEG with a segment of {length} bytes")
        yield marker, data[place + 4 : place + 2 + length]
        place += 2 + length


def _decoded(data: bytes, space: str, least: tuple[int, int]) -> NDArray[np.uint8]:
    """The pixels (height, width, channels) at the smallest scale with `least` rows and columns."""
    try:
        from simplejpeg import decode_jpeg, decode_jpeg_header
    except ImportError:
        raise Refused("JPEG needs simplejpeg: pip install simplejpeg") from None
    settings = {"min_height": least[0], "min_width": least[1]}
    try:
        height, width, _, _ = decode_jpeg_header(data, **settings)
        check_decoded(width, height)
        pixels: NDArray[np.uint8] = decode_jpeg(data, space, **settings)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # a library of C that says what it meets as ValueError or RuntimeError
        why = " ".join(str(error).split())[:200]
        if "Premature end" in why:
            raise Refused("a file that ends too early", "JPEG") from None
        if "Insufficient memory" in why:
            raise MemoryError(f"JPEG {why}") from None
        raise Refused("a damaged picture", f"JPEG: {why}") from None
    return pixels


def check_decoded(width: int, height: int) -> None:
    """Raises Refused for a picture that would take too much memory, even at the scale it is decoded at."""
    if width * height > LARGEST_PIXELS:
        raise Refused(
            "a picture that is too large", f"{width}x{height} decoded, {LARGEST_PIXELS} pixels are the most"
        )
