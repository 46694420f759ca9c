"""Pictures: resized and scaled to a bundle's input; Pillow decodes the formats that have no module here."""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import floor
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


def decode(data: bytes) -> Picture:
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
