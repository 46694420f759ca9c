"""Uncompressed pictures: what Pillow writes is read as Pillow reads it."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from device_runtime.models.data import png
from device_runtime.models.data.units import Refused

COLOURS = np.random.default_rng(1).integers(0, 256, (23, 31, 3)).astype(np.uint8)


def written(form, mode="RGB"):
    file = io.BytesIO()
    Image.fromarray(COLOURS).convert(mode).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "P"])
def test_bmp_of_all_depths(mode):
    data = written("BMP", mode)
    reference = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    pixels = png.decode_bmp(data).pixels
    assert pixels.shape[2] == (1 if mode in ("L", "1") else 3)
    assert np.array_equal(np.broadcast_to(pixels, reference.shape), reference)


def test_bmp_from_above_and_of_four_bits():
    header = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 8)
    info = struct.pack("<IiiHHIIiiII", 40, 3, -2, 1, 4, 0, 0, 0, 0, 2, 0)
    palette = bytes([1, 2, 3, 0, 10, 20, 30, 0])  # blue, green, red
    data = header + info + palette + bytes([0x01, 0x00, 0, 0, 0x11, 0x10, 0, 0])
    first, second = [3, 2, 1], [30, 20, 10]
    assert png.decode_bmp(data).pixels.tolist() == [[first, second, first], [second, second, second]]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pgm_and_ppm(mode):
    data = written("PPM", mode)
    reference = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(png.decode_pnm(data).pixels.reshape(reference.shape), reference)
    noted = data[:2] + b"\n# from a camera" + data[2:]
    assert np.array_equal(png.decode_pnm(noted).pixels.reshape(reference.shape), reference)


def test_pgm_of_16_bits():
    assert png.decode_pnm(b"P5 2 1 65535\n\x01\x02\x03\x04").pixels.ravel().tolist() == [0x102, 0x304]


@pytest.mark.parametrize(
    "decode, data, why",
    [
        (png.decode_bmp, written("BMP")[:500], "ends too early: 500 of"),
        (png.decode_bmp, b"BM" + bytes(10), "BMP without a header"),
        (png.decode_bmp, written("BMP")[:18] + struct.pack("<ii", 10**5, 10**5) + bytes(99), "too large"),
        (png.decode_bmp, written("BMP")[:28] + b"\x10" + written("BMP")[29:], "BMP of 16 bits"),
        (png.decode_bmp, written("BMP", "P")[:46] + b"\1" + written("BMP", "P")[47:], "of 1$"),
        (png.decode_pnm, written("PPM")[:300], "ends too early"),
        (png.decode_pnm, b"P6 99999 99999 255\n", "too large"),
        (png.decode_pnm, b"P6 nothing", "without a header"),
        (png.decode_pnm, b"P5 1 1 7\n\0", "up to 7, expected 255 or 65535"),
    ],
)
def test_a_damaged_one_is_refused(decode, data, why):
    with pytest.raises(Refused, match=why):
        decode(data)
