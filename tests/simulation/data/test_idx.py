import gzip

import numpy as np
import pytest

from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.errors import DataSetError


def idx(values):
    """As LeCun's page says: 0, 0, 8 for bytes, number of axes, sizes as 4 bytes each, values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes((0, 0, 8, values.ndim)) + sizes + values.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 251
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([9, 0, 4]))))
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx(images[1:]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([0, 4])))
    return tmp_path


def test_packed_and_unpacked_files_are_read(folder):
    data = load(DataSpec(source="fashion-mnist", path=str(folder)), 0)
    assert (data.train_x.shape, data.train_x.dtype) == ((3, 1, 28, 28), np.uint8)
    assert data.train_x[1, 0, 0, 0] == 784 % 251
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([9, 0, 4], [0, 4])
    assert data.labels[9] == "Ankle boot"
    assert load(DataSpec(source="mnist", path=str(folder)), 0).labels[9] == "9"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x01\x02", r"has 2 values, expected 3 for \(3,\)"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "begins with 00 00 0d 01, expected 00 00 08 01"),
        (b"<html>", "begins with 3c 68 74 6d"),
        (b"\x1f\x8b\x08 broken", "cannot be unpacked"),
        (b"", "expected 00 00 08 01"),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected(folder, content, message):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataSetError, match=f"train-labels-idx1-ubyte.gz .*{message}"):
        load(DataSpec(source="mnist", path=str(folder)), 0)


def test_a_missing_file_is_named_in_every_spelling(folder):
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataSetError, match="has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz or "):
        load(DataSpec(source="mnist", path=str(folder)), 0)
