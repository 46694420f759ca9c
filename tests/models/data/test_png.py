import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from device_runtime.models.data import png
from device_runtime.models.data.units import Refused


def drawn(shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
def test_every_filter_is_undone_and_alpha_dropped(png_bytes, channels, dtype, kind):
    pixels = drawn((5, 7, channels), dtype)
    decoded = png.decode(png_bytes(pixels, [kind] * 5)).pixels
    assert decoded.dtype == dtype
    assert np.array_equal(decoded, pixels[:, :, : 1 if channels < 3 else 3])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 9))
def test_lines_may_each_have_another_filter(png_bytes, filters, width):
    pixels = drawn((len(filters), width, 3), seed=width)
    assert np.array_equal(png.decode(png_bytes(pixels, filters)).pixels, pixels)


@pytest.mark.parametrize("mode, bits", [("1", 1), ("P", 2), ("P", 4), ("P", 8), ("L", 8)])
def test_palettes_and_small_depths_are_those_that_pillow_writes(mode, bits):
    from PIL import Image

    picture = (
        Image.fromarray(drawn((11, 13, 3))).convert(mode)
        if mode != "P"
        else Image.fromarray(drawn((11, 13, 3))).quantize(1 << bits)
    )
    file = io.BytesIO()
    picture.save(file, "PNG", bits=bits)
    reference = np.asarray(picture.convert("RGB"))
    assert np.array_equal(np.broadcast_to(png.decode(file.getvalue()).pixels, reference.shape), reference)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 5, 3), (8, 8), (9, 17, 4), (33, 20, 3)])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_an_interlaced_one_is_the_same_picture(shape, kind, png_bytes):
    """Adam7 as the standard writes it: pass by pass, here without filters."""
    pixels = drawn(shape).astype(kind)
    starts = (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    )
    passes = [pixels[row::down, column::across] for row, column, down, across in starts]
    lines = [
        b"\0" + line.astype(line.dtype.newbyteorder(">")).tobytes()
        for part in passes
        if part.size
        for line in part
    ]
    data = png_bytes(pixels, interlace=1, data=zlib.compress(b"".join(lines)))
    plain = png.decode(png_bytes(pixels)).pixels
    assert np.array_equal(png.decode(data).pixels, plain)
    if kind == np.uint8:
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels)


def test_one_is_turned_as_its_camera_noted(png_bytes, png_chunk):
    noted = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # to the right
    pixels = drawn((2, 4))
    plain = png_bytes(pixels)
    data = plain[:33] + png_chunk(b"eXIf", noted) + plain[33:]
    assert np.array_equal(png.decode(data).pixels[:, :, 0], np.rot90(pixels, -1))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: b"", "PNG without a header"),
        (lambda data: data[:-12], "ends too early"),
        (lambda data: data[:50], "ends too early"),
        (lambda data: data[:45] + bytes([data[45] ^ 1]) + data[46:], "wrong checksum"),
    ],
)
def test_a_damaged_file_is_refused(png_bytes, change, message):
    with pytest.raises(Refused, match=message):
        png.decode(change(png_bytes(drawn((4, 4)))))


@pytest.mark.parametrize(
    "data, message",
    [
        (zlib.compress(b"\5" * 20), "filter 5"),
        (zlib.compress(bytes(19)), "with 19 of 20 bytes"),
        (zlib.compress(bytes(21)), "more than its 20 bytes"),
        (b"no zlib", "a damaged picture"),
    ],
)
def test_damaged_data_are_refused(png_bytes, data, message):
    with pytest.raises(Refused, match=message):
        png.decode(png_bytes(drawn((4, 4)), data=data))


@pytest.mark.parametrize("width, height", [(0, 4), (20000, 1), (8000, 8000), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_a_bomb_is_refused_by_its_header(png_chunk, width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    bomb = png.SIGNATURE + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
    with pytest.raises(Refused, match="too large|without pixels"):
        png.decode(bomb + png_chunk(b"IEND", b""))


def test_data_that_unpacks_to_more_than_the_picture_is_not_unpacked(png_bytes):
    bomb = zlib.compress(bytes(200 << 20), 9)
    with pytest.raises(Refused, match="more than its 20 bytes"):
        png.decode(png_bytes(drawn((4, 4)), data=bomb))


@settings(max_examples=300)
@given(st.data())
def test_any_bytes_are_a_picture_or_refused(png_bytes, data):
    whole = png_bytes(drawn((6, 6, 3)), [4, 3, 2, 1, 0, 4])
    start = data.draw(st.integers(0, len(whole)))
    junk = data.draw(st.binary(max_size=40))
    body = whole[:start] + junk + whole[start + data.draw(st.integers(0, 40)) :]
    try:
        assert png.decode(body).pixels.ndim == 3
    except Refused as error:
        assert error.reason


def test_a_palette_of_few_bits_takes_no_more_memory_than_its_pixels_as_bytes(png_chunk):
    side = 1024
    lines = zlib.compress(bytes((side // 2 + 1) * side))
    header = struct.pack(">IIBBBBB", side, side, 4, 3, 0, 0, 0)
    chunks = (b"IHDR", header), (b"PLTE", bytes(3)), (b"IDAT", lines), (b"IEND", b"")
    data = png.SIGNATURE + b"".join(png_chunk(*chunk) for chunk in chunks)
    tracemalloc.start()
    try:
        png.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 12 * side * side
    finally:
        tracemalloc.stop()
