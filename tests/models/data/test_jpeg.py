"""JPEG as phones, cameras and programs write it, decoded in the plain install."""

import io
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import pictures, single
from device_runtime.models.data.units import Refused

COLOURS = np.kron(np.random.default_rng(1).integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1))).astype(np.uint8)
THREE = InputSpec((3, 32, 32), 1 / 255)


def written(picture=COLOURS, **options):
    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, "JPEG", **options)
    return file.getvalue()


def exif(turned):
    noted = Image.Exif()
    noted[0x0112] = turned
    return noted.tobytes()


def with_size(data, width, height):
    """The file with another size in its frame header."""
    place = next(
        data.index(bytes([0xFF, marker])) for marker in (0xC0, 0xC2) if bytes([0xFF, marker]) in data
    )
    return data[: place + 5] + struct.pack(">HH", height, width) + data[place + 9 :]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 100}])
def test_a_photo_is_what_pillow_makes_of_it(options):
    data = written(**options)
    reference = np.asarray(Image.open(io.BytesIO(data)))
    assert np.abs(pictures.decode_jpeg(data).picture().pixels.astype(int) - reference).max() <= 1


def test_grey_and_cmyk_photos_are_read():
    grey = written(COLOURS[:, :, 0])
    assert pictures.decode_jpeg(grey).picture().pixels.shape == (96, 128, 1)
    assert pictures.decode_jpeg(grey).form == "picture 128x96 grey 8 bits"
    inks = written(Image.fromarray(COLOURS).convert("CMYK"), quality=95)
    reference = np.asarray(Image.open(io.BytesIO(inks)).convert("RGB"))
    assert np.abs(pictures.decode_jpeg(inks).picture().pixels.astype(int) - reference).max() <= 1
    assert pictures.decode_jpeg(inks).raw(THREE).shape == (1, 3, 32, 32)


@pytest.mark.parametrize("turned", range(1, 9))
def test_a_photo_is_turned_as_its_camera_noted(turned):
    data = written(exif=exif(turned), quality=95)
    photo, reference = (
        pictures.decode_jpeg(data),
        np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))),
    )
    assert np.abs(photo.picture().pixels.astype(int) - reference).max() <= 1
    assert photo.form == f"picture {reference.shape[1]}x{reference.shape[0]} RGB 8 bits"
    wide = InputSpec((3, 8, 16), 1 / 255)
    fitted = ImageOps.fit(Image.fromarray(reference), (16, 8), Image.Resampling.BILINEAR)
    assert np.abs(photo.raw(wide)[0].transpose(1, 2, 0).astype(int) - np.asarray(fitted)).mean() < 6


def test_damaged_exif_data_leave_the_photo_as_it_is_stored():
    good = exif(6)
    for damaged in (good[:9], good[:16], b"Exif\0\0II*\0\xff\xff\xff\x7f", b"Exif\0\0nothing"):
        assert pictures.decode_jpeg(written(exif=damaged)).picture().pixels.shape == (96, 128, 3)


def test_a_photo_of_12_megapixels_is_decoded_no_larger_than_the_input_needs():
    data = written(np.kron(COLOURS, np.ones((32, 32, 1), np.uint8)))
    photo = pictures.decode_jpeg(data)
    assert (photo.width, photo.height) == (4096, 3072)
    assert photo.picture(32, 32).pixels.shape == (384, 512, 3)  # an eighth
    assert photo.picture(256, 256).pixels.shape == (768, 1024, 3)  # a quarter: 512 lines would do
    small = written(COLOURS)
    near = single.decode_file(data, "a.jpg").raw(THREE).astype(int)
    assert np.abs(near - pictures.decode_jpeg(small).raw(THREE)).mean() < 4


def test_a_small_photo_is_not_reduced_before_it_is_resized():
    photo = pictures.decode_jpeg(written(quality=95))
    reference = ImageOps.fit(Image.fromarray(photo.picture().pixels), (60, 60), Image.Resampling.BILINEAR)
    spec = InputSpec((3, 60, 60), 1 / 255)
    assert np.abs(photo.raw(spec)[0].transpose(1, 2, 0).astype(int) - np.asarray(reference)).max() <= 1


@pytest.mark.parametrize("width, height", [(65_500, 65_500), (16_384, 16_384 * 2 - 1), (65_535, 8)])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_header_that_promises_a_huge_photo_is_refused(width, height, progressive):
    with pytest.raises(Refused, match=f"a picture that is too large: JPEG {width}x{height}"):
        pictures.decode_jpeg(with_size(written(progressive=progressive), width, height))


def test_a_photo_that_would_be_too_large_when_decoded_is_refused(monkeypatch):
    monkeypatch.setattr("device_runtime.models.data.pictures.LARGEST_PIXELS", 100)
    with pytest.raises(Refused, match="128x96 decoded, 100 pixels are the most"):
        pictures.decode_jpeg(written()).raw(InputSpec((3, 96, 96), 1 / 255))


def test_a_photo_for_which_there_is_no_memory_is_not_called_damaged(monkeypatch):
    def without_memory(*_, **__):
        raise ValueError("Insufficient memory (case 4)")

    monkeypatch.setattr("simplejpeg.decode_jpeg", without_memory)
    with pytest.raises(MemoryError):
        single.decode_file(written(), "a.jpg").raw(THREE)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_photo_that_was_copied_in_part_is_refused(share, progressive):
    data = written(np.kron(COLOURS, np.ones((4, 4, 1), np.uint8)), progressive=progressive)
    with pytest.raises(Refused, match="a file that ends too early: JPEG|a damaged picture"):
        pictures.decode_jpeg(data[: int(share * len(data))]).raw(THREE)


def test_a_second_picture_behind_the_first_is_not_looked_at():
    data = written() + written(COLOURS[::-1])  # as in MPO, and in photos with a video behind them
    assert np.array_equal(pictures.decode_jpeg(data).raw(THREE), pictures.decode_jpeg(written()).raw(THREE))


@pytest.mark.parametrize("name", ["a.png", "a.JPG", "a.jpeg", "a.jfif", "a.MPO", "a.webp", "a.bmp"])
def test_a_photo_is_read_whatever_its_ending(name):
    assert single.decode_file(written(), name).form == "picture 128x96 RGB 8 bits"


def test_heic_and_other_pictures_say_what_to_do():
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    for name, data in (("a.heic", heic), ("IMG_1.HEIC", b""), ("a.jpg", heic), ("a.avif", b"x")):
        with pytest.raises(Refused, match="HEIC and AVIF pictures are not read: save it as JPEG or PNG"):
            single.decode_file(data, name)
    with pytest.raises(Refused, match="sound is read from WAV: convert it"):
        single.decode_file(b"ID3", "a.mp3")


def test_photos_need_no_pillow_and_say_what_they_need(monkeypatch):
    data = written()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert single.decode_file(data, "a.jpg").raw(THREE).shape == (1, 3, 32, 32)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(Refused, match="JPEG needs simplejpeg: pip install simplejpeg"):
        single.decode_file(data, "a.jpg").raw(THREE)


def test_other_files_that_are_called_photos_are_refused():
    with pytest.raises(Refused, match="no JPEG: it begins with b'<html>"):
        single.decode_file(b"<html>not found</html>", "a.jpg")
    with pytest.raises(Refused, match="an empty file"):
        single.decode_file(b"", "a.jpg")
    twelve = bytearray(written())
    twelve[twelve.index(b"\xff\xc0") + 4] = 12
    with pytest.raises(Refused, match="unsupported picture format: JPEG of 12 bits"):
        pictures.decode_jpeg(bytes(twelve))


@pytest.mark.parametrize("progressive", [False, True])
@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 2000), junk=st.binary(max_size=30))
def test_any_bytes_are_a_photo_or_refused(progressive, cut, junk):
    data = written(progressive=progressive)
    try:
        assert single.decode_file(data[:cut] + junk + data[cut + len(junk) :], "a.jpg").raw(THREE).size
    except Refused as error:
        assert error.reason
