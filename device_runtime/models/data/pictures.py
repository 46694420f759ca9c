"""Pictures: JPEG decoded, turned as the camera noted, resized and scaled to a bundle's input.

Pillow decodes the formats that have no decoder here. The orientation is in EXIF data (CIPA DC-008, tag
0x0112). libjpeg-turbo decodes JPEG at the smallest of its scales that still has more pixels than the input.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .units import Refused

LARGEST_SIDE = 1 << 14
LARGEST_PIXELS = 1 << 24
"""A picture is decoded only if it has at most 16,384 pixels a side and 16.8 million in all."""

GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601
BYTE = 255


@dataclass(frozen=True)
class Picture:
    """A picture (height, width, 1 or 3 channels) of uint8 or uint16; 0 is black, the largest value white."""

    pixels: NDArray[Any]

    @property
    def form(self) -> str:
        height, width, channels = self.pixels.shape
        return (
            f"picture {width}x{height} {'RGB' if channels == 3 else 'grey'} {8 * self.pixels.itemsize} bits"
        )

    def raw(self, spec: InputSpec) -> NDArray[Any]:
        """(1, channels, height, width) of uint8, or float32 where white is not 255 (see `white`).

        Raises Refused if the task's input is no picture.
        """
        need_picture(spec)
        channels, height, width = spec.shape
        pixels: NDArray[Any] = resized(self.pixels, height, width)
        if channels == 1 and pixels.shape[2] == 3:
            pixels = (pixels @ GREY)[:, :, None]
        pixels = np.broadcast_to(pixels, (height, width, channels)).transpose(2, 0, 1)[None]
        scale = white(spec) / np.iinfo(self.pixels.dtype).max
        pixels = pixels * np.float32(scale)
        return np.rint(pixels).astype(np.uint8) if white(spec) == BYTE else pixels


def is_picture(spec: InputSpec) -> bool:
    """Whether the input has the shape of a picture: one or three channels, and two more axes."""
    return spec.vocabulary is None and len(spec.shape) == 3 and spec.shape[0] in (1, 3)


def need_picture(spec: InputSpec) -> None:
    """Raises Refused if the task's input is no picture."""
    if not is_picture(spec):
        raise Refused("the task's input is no picture", f"it is {spec.shape}")


def white(spec: InputSpec) -> float:
    """The raw value of white; 255 if the input's scale does not determine it."""
    return spec.white or BYTE


def check_size(width: int, height: int) -> None:
    """Raises Refused for a picture that is empty, or would take too much memory."""
    if width < 1 or height < 1:
        raise Refused("a picture without pixels", f"{width}x{height}")
    if max(width, height) > LARGEST_SIDE or width * height > LARGEST_PIXELS:
        raise Refused(
            "a picture that is too large", f"{width}x{height}, {LARGEST_PIXELS} pixels are the most"
        )


# Pillow, of the extra `images`, reads GIF, WebP and TIFF.

FORMATS = ("GIF", "WEBP", "TIFF")


def decode_by_pillow(data: bytes) -> Picture:
    """The first picture of the file, as RGB or grey, turned as its camera noted.

    Raises Refused, also where Pillow is missing.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise Refused("GIF, WebP and TIFF need Pillow: pip install 'device-runtime[images]'") from None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_size(*image.size)
            if image.mode in ("I", "F") or image.mode.startswith("I;"):  # made RGB, all above 255 is white
                raise Refused("unsupported picture format", f"{image.format} of mode {image.mode}")
            upright = ImageOps.exif_transpose(image)
            pixels: NDArray[Any] = np.asarray(upright if upright.mode == "L" else upright.convert("RGB"))
    except (Refused, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders and its reader of EXIF let out whatever they meet
        raise Refused("a damaged picture", str(error)[:200]) from None
    return Picture(pixels if pixels.ndim == 3 else pixels[:, :, None])


Floats = NDArray[np.float32]


def resized(pixels: NDArray[Any], height: int, width: int) -> Floats:
    """Resizes the largest central part of the wanted proportions, (h, w, c) to (height, width, c).

    Enlarging interpolates linearly between neighbours. Reducing takes the mean of all pixels that are
    covered, with weights that fall linearly: the filter of Pillow's BILINEAR, which prepares the pictures of
    simulations.
    """
    rows, columns, channels = pixels.shape
    if (rows, columns) == (height, width):
        return pixels.astype(np.float32)
    tall, wide = min(rows, columns * height / width), min(columns, rows * width / height)
    upright = _along(pixels.reshape(rows, -1), tall, height).reshape(height, columns, channels)
    across = upright.transpose(1, 0, 2).reshape(columns, -1)
    picture: Floats = _along(across, wide, width).reshape(width, height, channels).transpose(1, 0, 2)
    return picture


def _along(lines: NDArray[Any], length: float, size: int) -> Floats:
    """Resizes the central `length` of lines (n, values) to `size` lines."""
    count, step = len(lines), length / size
    begin, reach = (count - length) / 2, max(length / size, 1.0)
    means = np.empty((size, lines.shape[1]), np.float32)
    for number in range(size):
        centre = begin + (number + 0.5) * step
        low, high = max(0, floor(centre - reach + 0.5)), min(count, floor(centre + reach + 0.5))
        weights = np.maximum(0.0, 1 - np.abs(np.arange(low, high) + 0.5 - centre) / reach)
        means[number] = (weights / weights.sum()).astype(np.float32) @ lines[low:high].astype(np.float32)
    return means


UPRIGHT = 1
ORIENTATION = 0x0112
MOST_ENTRIES = 512
SHORT, LONG = 3, 4
SIZES = {SHORT: "H", LONG: "I"}


def orientation(tiff: bytes) -> int:
    """The orientation, 1 to 8, in EXIF data, which begin with the header of a TIFF file.

    Damaged data and other values count as 1: the picture stays as it is stored.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return UPRIGHT
    (place,) = struct.unpack_from(f"{order}I", tiff, 4)
    if place + 2 > len(tiff):
        return UPRIGHT
    (count,) = struct.unpack_from(f"{order}H", tiff, place)
    for number in range(min(count, MOST_ENTRIES)):
        at = place + 2 + 12 * number
        if at + 12 > len(tiff):
            break
        tag, kind, values = struct.unpack_from(f"{order}HHI", tiff, at)
        if tag == ORIENTATION and kind in SIZES and values == 1:
            (value,) = struct.unpack_from(order + SIZES[kind], tiff, at + 8)
            return value if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def lies_on_its_side(turned: int) -> bool:
    """Whether width and height change places when a picture of this orientation is turned."""
    return turned >= 5


def upright(pixels: NDArray[Any], turned: int) -> NDArray[Any]:
    """The picture (height, width, channels) as it was seen; a view."""
    mirrored = pixels[:: -1 if turned in (3, 4, 6, 7) else 1, :: -1 if turned in (2, 3, 7, 8) else 1]
    return np.swapaxes(mirrored, 0, 1) if lies_on_its_side(turned) else mirrored


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


def decode_jpeg(data: bytes) -> Photo:
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
