import io
import logging
import sys

import numpy as np
import pytest
from PIL import Image

from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.errors import DataSetError


def jpeg(grey, size=(8, 8)):
    out = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(out, "JPEG")
    return out.getvalue()


def stored(path, train, test, **more):
    """Files one after the other, and where each begins and the last ends."""
    arrays = {}
    for part, files in (("train", train), ("test", test)):
        arrays[f"jpeg_{part}"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"off_{part}"] = np.cumsum([0, *map(len, files)])
        arrays[f"y_{part}"] = np.arange(len(files), dtype=np.uint8)
    np.savez(path, **{**arrays, **more})
    return DataSpec(source="jpeg-npz", path=str(path))


def test_images_are_decoded_and_kept(tmp_path, cache_folder):
    spec = stored(tmp_path / "d.npz", [jpeg(10), jpeg(200)], [jpeg(90)], class_names=["dark", "light"])
    data = load(spec, 0)
    assert (data.train_x.shape, data.train_x.dtype) == ((2, 3, 8, 8), np.uint8)
    assert data.train_x.mean((1, 2, 3)) == pytest.approx([10, 200], abs=2)
    assert (data.train_y.tolist(), data.labels) == ([0, 1], ("dark", "light"))
    [folder] = cache_folder.iterdir()
    assert sorted(file.name for file in folder.iterdir()) == [
        "class_names.npy",
        "x_test.npy",
        "x_train.npy",
        "y_test.npy",
        "y_train.npy",
    ]
    before = data.train_x.copy()
    (folder / "x_train.npy").unlink()
    (folder / "x_train.npy").write_bytes(b"damaged")
    assert np.array_equal(load(spec, 0).train_x, before)


def test_damaged_images_and_those_of_another_size_are_left_out(tmp_path, caplog):
    files = [jpeg(10), jpeg(10)[:30], jpeg(30), jpeg(9, (4, 4))]
    with caplog.at_level(logging.WARNING):
        data = load(stored(tmp_path / "d.npz", files, [jpeg(90)]), 0)
    assert data.train_y.tolist() == [0, 2]
    assert "skipped 2 of 4 train images of d.npz" in caplog.text


def test_offsets_that_do_not_fit_are_an_error(tmp_path):
    spec = stored(tmp_path / "d.npz", [jpeg(10)], [jpeg(90)], off_train=np.array([0, 10_000_000]))
    with pytest.raises(DataSetError, match="off_train are 2 offsets, expected 2 ascending"):
        load(spec, 0)
    with pytest.raises(DataSetError, match="is a folder, expected a .npz file"):
        load(DataSpec(source="jpeg-npz", path=str(tmp_path)), 0)


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path, cache_folder, caplog):
    cache_folder.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        data = load(stored(tmp_path / "d.npz", [jpeg(10)], [jpeg(90)]), 0)
    assert len(data.train_y) == 1
    assert "cannot keep decoded data" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("cifar10_10k_2k_jpegbytes.npz", 10_000, 2_000), ("cifar10_full_jpegbytes.npz", 50_000, 10_000)],
)
def test_real_images_decode_as_pillow_decodes_them(shared, name, train, test):
    path = shared(name)
    data = load(DataSpec(source="jpeg-npz", path=path), 0)
    assert data.train_x.shape == (train, 3, 32, 32)
    assert data.test_x.shape == (test, 3, 32, 32)
    assert np.bincount(data.train_y).tolist() == [train // 10] * 10
    with np.load(path) as raw:
        begin, end = raw["off_train"][777:779]
        image = Image.open(io.BytesIO(raw["jpeg_train"][begin:end].tobytes()))
    assert np.array_equal(data.train_x[777], np.asarray(image).transpose(2, 0, 1))


def test_without_pillow_the_extra_is_named(tmp_path, cache_folder, monkeypatch):
    spec = stored(tmp_path / "d.npz", [jpeg(10)], [jpeg(90)])
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataSetError, match=r"source jpeg-npz needs the extra images: pip install"):
        load(spec, 0)
