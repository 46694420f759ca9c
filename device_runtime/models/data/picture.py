"""A picture, as a bundle's input wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .refusal import Refused
from .resizing import resized

LARGEST_SIDE = 1 << 14
LARGEST_PIXELS = 1 << 24
"""A picture is decoded only if it has at most 16,384 pixels a side and 16.8 million in all."""

GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601
BYTE = 255


@dataclass(frozen=True)
class Picture:
    """pixels (height, width, channels) of uint8 or uint16, black 0, white the largest; 1 or 3 channels."""

    pixels: NDArray[Any]

    @property
    def form(self) -> str:
        height, width, channels = self.pixels.shape
        return (
            f"picture {width}x{height} {'RGB' if channels == 3 else 'grey'} {8 * self.pixels.itemsize} bits"
        )

    def raw(self, given: InputSpec) -> NDArray[Any]:
        """(1, channels, height, width) of uint8, or float32 where white is not 255 (see `white`).

        Raises Refused where the input is no picture.
        """
        if not is_picture(given):
            raise Refused("the task's input is no picture", f"it is {given.shape}")
        channels, height, width = given.shape
        made: NDArray[Any] = resized(self.pixels, height, width)
        if channels == 1 and made.shape[2] == 3:
            made = (made @ GREY)[:, :, None]
        made = np.broadcast_to(made, (height, width, channels)).transpose(2, 0, 1)[None]
        scale = white(given) / np.iinfo(self.pixels.dtype).max
        made = made * np.float32(scale)
        return np.rint(made).astype(np.uint8) if white(given) == BYTE else made


def is_picture(given: InputSpec) -> bool:
    """Whether the input has one or three channels of two axes."""
    return given.vocabulary is None and len(given.shape) == 3 and given.shape[0] in (1, 3)


def white(given: InputSpec) -> float:
    """The raw value of white; 255 where the input's scale does not say it."""
    return given.white or BYTE


def check_size(width: int, height: int) -> None:
    """Raises Refused for a picture that is empty, or would take too much memory."""
    if width < 1 or height < 1:
        raise Refused("a picture without pixels", f"{width}x{height}")
    if max(width, height) > LARGEST_SIDE or width * height > LARGEST_PIXELS:
        raise Refused(
            "a picture that is too large", f"{width}x{height}, {LARGEST_PIXELS} pixels are the most"
        )
