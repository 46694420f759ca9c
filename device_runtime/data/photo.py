"""JPEG, GIF, WebP and TIFF, by Pillow: the extra `images`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .picture import Picture, check_size
from .refusal import Refused

FORMATS = ("JPEG", "GIF", "WEBP", "TIFF")


def decode(data: bytes) -> Picture:
    """The first picture of the file, as RGB or grey. Raises Refused, also where Pillow is missing."""
    try:
        from PIL import Image
    except ImportError:
        raise Refused("needs Pillow: pip install 'device-runtime[images]'") from None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_size(*image.size)
            pixels: NDArray[Any] = np.asarray(image if image.mode == "L" else image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, EOFError) as error:
        raise Refused("a damaged picture", str(error)[:200]) from None
    return Picture(pixels if pixels.ndim == 3 else pixels[:, :, None])
