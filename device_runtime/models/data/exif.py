"""Turns a picture as its camera noted: the orientation in EXIF data (CIPA DC-008, tag 0x0112)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
