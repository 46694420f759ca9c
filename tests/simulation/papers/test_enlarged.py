"""Images that are enlarged once."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import exporting
from device_runtime.simulation.data import DataSpec, files, load


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Three images of one colour each, 4x4; the cache is in the test's folder."""
    monkeypatch.setattr(files, "folder", lambda: tmp_path / "cache")
    x = np.zeros((3, 3, 4, 4), np.uint8)
    x[0, 0], x[1, 1], x[2, 2] = 200, 100, 50
    file = tmp_path / "small.npz"
    np.savez(file, x_train=x[:2], y_train=np.array([0, 1]), x_test=x[2:], y_test=np.array([1]))
    return DataSpec(source="npz", path=str(file))


def test_colours_and_labels_stay(small):
    data = load(DataSpec(source="npz", path=str(exporting.enlarged(small, 6, 3))), 0)
    assert data.train_x.shape == (2, 3, 6, 6)
    assert data.test_x.shape == (1, 3, 6, 6)
    assert (data.train_x[0, 0] == 200).all()
    assert (data.train_x[1, 1] == 100).all()
    assert (data.test_x[0, 2] == 50).all()
    assert data.train_y.tolist() == [0, 1]
    assert data.labels == ("0", "1")


def test_it_is_done_once_for_each_size(small, monkeypatch):
    first = exporting.enlarged(small, 6, 3)
    assert exporting.enlarged(small, 8, 3) != first
    monkeypatch.setattr(exporting, "_photo_tables", None)
    assert exporting.enlarged(small, 6, 3) == first


def test_a_copy_of_the_data_is_the_same_data(small, tmp_path):
    copy = tmp_path / "elsewhere" / "copy.npz"
    copy.parent.mkdir()
    copy.write_bytes(Path(small.path).read_bytes())
    assert exporting.enlarged(DataSpec(source="npz", path=str(copy)), 6, 3) == exporting.enlarged(small, 6, 3)


def test_spectra_of_speakers_become_square_and_keep_their_speakers(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "folder", lambda: tmp_path / "cache")
    x = np.full((4, 1, 6, 2), 90, np.uint8)
    file, y = tmp_path / "spoken.npz", np.arange(4)
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y, groups=np.array([5, 5, 6, 7]))
    folder = exporting.enlarged(DataSpec(source="npz", path=str(file)), 4, 1)
    data = load(DataSpec(source="npz", path=str(folder)), 0)
    assert data.train_x.shape == (4, 1, 4, 4)
    assert (data.train_x == 90).all()
    assert data.groups.tolist() == [5, 5, 6, 7]


def test_other_classes_of_one_file_are_other_images(small):
    part = DataSpec(source="npz", path=small.path, classes=(1,))
    assert exporting.enlarged(part, 6, 3) != exporting.enlarged(small, 6, 3)


def test_spectra_get_three_channels_for_networks_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "folder", lambda: tmp_path / "cache")
    x = np.arange(2, dtype=np.uint8).repeat(12).reshape(2, 1, 6, 2) * 90
    file, y = tmp_path / "spoken.npz", np.arange(2)
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    data = load(
        DataSpec(source="npz", path=str(exporting.enlarged(DataSpec(source="npz", path=str(file)), 4, 3))), 0
    )
    assert data.train_x.shape == (2, 3, 4, 4)
    assert [np.unique(image).tolist() for image in data.train_x] == [[0], [90]]
