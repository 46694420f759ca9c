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
    """The first picture of the file, as RGB or grey, turned as its camera noted.

    Raises Refused, also where Pillow is missing.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise Refused("needs Pillow: pip install 'device-runtime[images]'") from None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_size(*image.size)
            if image.mode in ("I", "F") or image.mode.startswith("I;"):  # made RGB, all above 255 is white
                raise Refused("a picture that is not read", f"{image.format} of mode {image.mode}")
            upright = ImageOps.exif_transpose(image)
            pixels: NDArray[Any] = np.asarray(upright if upright.mode == "L" else upright.convert("RGB"))
    except (Refused, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders and its reader of EXIF let out whatever they meet
        raise Refused("a damaged picture", str(error)[:200]) from None
    return Picture(pixels if pixels.ndim == 3 else pixels[:, :, None])
