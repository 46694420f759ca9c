import io
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import pictures
from device_runtime.models.data.pictures import Picture, resized, white
from device_runtime.models.data.units import Refused

COLOURS = np.random.default_rng(1).integers(0, 256, (23, 31, 3)).astype(np.uint8)
BYTES = 0.00392157  # 1 / 255, as it is often written


def written(form, pixels=COLOURS, **options):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF"])
def test_other_pictures_are_read_by_pillow_and_its_absence_is_said(form, monkeypatch):
    assert pictures.decode_by_pillow(written(form)).pixels.shape == COLOURS.shape
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        Refused, match=r"GIF, WebP and TIFF need Pillow: pip install 'device-runtime\[images\]'"
    ):
        pictures.decode_by_pillow(b"GIF89a")


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF"])
@settings(max_examples=60)
@given(cut=st.integers(0, 400), junk=st.binary(max_size=30))
def test_any_bytes_are_a_picture_or_refused(form, cut, junk):
    data = written(form)
    try:
        assert pictures.decode_by_pillow(data[:cut] + junk + data[cut + len(junk) :]).pixels.size
    except Refused as error:
        assert error.reason


def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr("device_runtime.models.data.pictures.LARGEST_PIXELS", 100)
    with pytest.raises(Refused, match="31x23"):
        pictures.decode_by_pillow(written("TIFF"))


@pytest.mark.parametrize("height, width", [(8, 8), (46, 62), (12, 40), (40, 12), (23, 31)])
def test_another_size_is_that_of_pillow(height, width):
    from PIL import Image, ImageOps

    reference = ImageOps.fit(Image.fromarray(COLOURS), (width, height), Image.Resampling.BILINEAR)
    ours = np.rint(resized(COLOURS, height, width))
    assert np.abs(ours - np.asarray(reference, np.float32)).max() <= 1


def test_a_reduced_picture_is_the_mean_of_what_it_covers():
    checks = np.indices((64, 64)).sum(0)[:, :, None] % 2 * 200
    assert resized(checks.astype(np.uint8), 4, 4)[1:3, 1:3] == pytest.approx(100.0, abs=0.01)
    steps = np.repeat(np.arange(4), 16)[:, None, None] * np.ones((1, 64, 1)) * 10
    # the filter reaches 16 lines to each side of the centre of 16: three quarters are of its own step
    assert resized(steps.astype(np.uint8), 4, 4)[1:3, 1, 0] == pytest.approx([10.0, 20.0], abs=0.01)


def test_colours_become_what_the_input_has():
    grey = Picture(np.full((2, 2, 1), 7, np.uint8)).raw(InputSpec((3, 2, 2), BYTES))
    assert (grey.shape, grey.dtype, set(grey.ravel().tolist())) == ((1, 3, 2, 2), np.uint8, {7})
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 100
    assert set(Picture(red).raw(InputSpec((1, 2, 2), BYTES)).ravel().tolist()) == {30}  # 29.9


def test_white_is_what_the_scale_of_the_input_brings_to_one():
    assert [white(InputSpec((1, 2, 2), scale)) for scale in (BYTES, 1 / 255, 0.0625, 1.0)] == [
        255,
        255,
        16,
        255,
    ]
    centred = InputSpec((1, 2, 2), 1 / 127.5, (1.0,)), InputSpec((1, 2, 2), 1 / 128, (1.0,))
    folded = (
        InputSpec((3, 2, 2), 1 / (255 * 0.225), (2.12, 2.03, 1.8)),
        InputSpec((1, 2, 2), 1 / (255 * 0.3081)),
    )
    assert [white(spec) for spec in (*centred, *folded)] == [255] * 4
    deep = Picture(np.full((2, 2, 1), 65535, np.uint16))
    assert deep.raw(InputSpec((1, 2, 2), 0.0625)).ravel().tolist() == [16.0] * 4
    assert deep.raw(InputSpec((1, 2, 2), BYTES)).ravel().tolist() == [255] * 4


@pytest.mark.parametrize(
    "spec", [InputSpec((5,)), InputSpec((2, 4, 4)), InputSpec((4,), dtype="int64", vocabulary=9)]
)
def test_a_task_that_is_not_of_pictures_takes_none(spec):
    with pytest.raises(Refused, match="the task's input is no picture"):
        Picture(COLOURS).raw(spec)


def test_a_photo_is_turned_as_its_camera_noted():
    from PIL import Image

    photo = Image.new("L", (4, 2))
    photo.putpixel((0, 0), 255)
    noted = Image.Exif()
    noted[0x0112] = 6  # to be turned to the right
    file = io.BytesIO()
    photo.save(file, "TIFF", exif=noted)
    pixels = pictures.decode_by_pillow(file.getvalue()).pixels
    assert pixels.shape == (4, 2, 1)
    assert np.argwhere(pixels).tolist() == [[0, 1, 0]]


def test_a_photo_of_more_than_8_bits_is_refused_and_not_made_white():
    file = written("TIFF", np.full((3, 3), 700, np.uint16))
    with pytest.raises(Refused, match=r"unsupported picture format: TIFF of mode I;16"):
        pictures.decode_by_pillow(file)


def test_whatever_pillow_raises_refuses_the_picture(monkeypatch):
    from PIL import ImageOps

    def broken(_):
        raise ZeroDivisionError("of EXIF")

    monkeypatch.setattr(ImageOps, "exif_transpose", broken)
    with pytest.raises(Refused, match="a damaged picture: of EXIF"):
        pictures.decode_by_pillow(written("TIFF"))
