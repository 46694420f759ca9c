import io
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from device_runtime.models import data
from device_runtime.models.data import SampleSource, Selection, arrays, listing, open_samples
from device_runtime.models.data.local_samples import LocalSamples
from device_runtime.models.data.units import Refused, SampleFormat
from device_runtime.models.errors import DataError


def save(folder, name, x, y):
    np.savez(folder / name, x=x, y=y)


def images(n):
    return np.zeros((n, 1, 8, 8), np.uint8)


def test_all_npz_files_of_a_folder_are_joined(tmp_path, bundle):
    save(tmp_path, "a.npz", images(3), np.array([0, 1, 2]))
    save(tmp_path, "b.npz", np.zeros((2, 8, 8)), np.array([9, 9]))
    loaded = data.load(tmp_path, bundle.manifest)
    assert loaded.x.shape == (5, 1, 8, 8)
    assert loaded.y.tolist() == [0, 1, 2, 9, 9]
    assert loaded.class_counts(10) == (1, 1, 1, 0, 0, 0, 0, 0, 0, 2)


def test_a_damaged_file_is_skipped_and_said(tmp_path, bundle, caplog):
    save(tmp_path, "a.npz", images(3), np.array([0, 1, 2]))
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 no zip at all")
    assert len(data.load(tmp_path, bundle.manifest)) == 3
    assert "skipped" in caplog.text
    assert "b.npz" in caplog.text


def test_no_data_is_an_error_that_says_what_to_give(tmp_path, bundle):
    with pytest.raises(DataError, match=r"no data at .*nowhere: give a folder of class folders, a \.npz"):
        data.load(tmp_path / "nowhere", bundle.manifest)
    with pytest.raises(DataError, match=r"no samples in .*: nothing is there"):
        data.load(tmp_path, bundle.manifest)


@pytest.mark.parametrize("junk", [b"", b"not a zip", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00"])
def test_nothing_readable_is_an_error(tmp_path, bundle, junk):
    (tmp_path / "only.npz").write_bytes(junk)
    with pytest.raises(
        DataError, match=r"no readable samples in .*: (not a \.npz file|has no array 'x').*only\.npz"
    ):
        data.load(tmp_path, bundle.manifest)


def test_invalid_samples_of_an_npz_are_left_out_one_by_one_and_counted(tmp_path, bundle):
    x = np.arange(6 * 64, dtype=float).reshape(6, 1, 8, 8)
    x[4, 0, 0, 0] = np.nan
    save(tmp_path, "a.npz", x, np.array([3, 77, 5, -1, 6, 77]))
    samples = data.LocalSamples(data.SampleSource(tmp_path), bundle.manifest)
    samples.refresh()
    assert samples.training.y.tolist() == [3, 5]
    assert samples.forms.total() == 2
    assert {entry.reason: entry.count for entry in samples.skipped} == {
        "label '77' is not of the task": 2,
        "label '-1' is not of the task": 1,
        "values are not finite": 1,
    }


@pytest.mark.parametrize(
    "x, y, message",
    [
        (images(2), np.array([10, 10]), "label '10' is not of the task: 2"),
        (images(2), np.array([-1, -1]), "label '-1' is not of the task"),
        (images(2), np.array([0.5, 1.0]), "y is float64"),
        (images(2), np.array([1, 2, 3]), "expected one integer for each of the"),
        (np.zeros((2, 3, 32, 32)), np.array([1, 2]), r"\(2, 3, 32, 32\), expected \(1, 8, 8\)"),
        (np.zeros((1, 8, 8)), np.array([1, 2]), "expected one integer for each"),
        (np.zeros((8, 8)), np.arange(8), r"another shape .*\(8, 8\), expected \(n, 1, 8, 8\)"),
        (np.full((2, 1, 8, 8), np.nan), np.array([1, 2]), "values are not finite: 2"),
        (images(0), np.zeros(0, int), "a file without samples"),
        (np.array([[object()]] * 2), np.array([1, 2]), "Python objects, which are not read"),
        (np.full((2, 8, 8), "pixel"), np.array([1, 2]), "x is no array of numbers.*<U5"),
    ],
)
def test_samples_that_are_not_of_the_task_are_refused(tmp_path, bundle, x, y, message):
    np.savez(tmp_path / "d.npz", x=x, y=y, allow_pickle=True) if x.dtype == object else save(
        tmp_path, "d.npz", x, y
    )
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "d.npz", bundle.manifest)


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, bundle, monkeypatch):
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((9000, 1, 8, 8)), y=np.zeros(9000, int))
    assert (tmp_path / "d.npz").stat().st_size < 20_000  # of 4.6 MB
    monkeypatch.setattr(arrays, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(DataError, match="unpacks to too much"):
        data.load(tmp_path, bundle.manifest)


def test_an_archive_of_more_than_the_device_has_room_for_is_not_unpacked(tmp_path, bundle):
    np.savez(tmp_path / "large.npz", x=images(2000), y=np.zeros(2000, int))
    np.savez(tmp_path / "small.npz", x=images(20), y=np.zeros(20, int))
    samples = LocalSamples(SampleSource(tmp_path), bundle.manifest, Selection(room_bytes=20_000))
    samples.refresh()
    assert len(samples.training) == 20
    assert [entry.reason for entry in samples.skipped] == ["unpacks to too much"]


def test_class_numbers_may_have_names_and_labels_may_be_names(tmp_path, bundle):
    np.savez(tmp_path / "a.npz", x=images(2), y=np.array([1, 0]), class_names=np.array(["seven", "3"]))
    np.savez(tmp_path / "b.npz", x=images(2), y=np.array(["4", "Seven"]))
    (tmp_path / "labels.toml").write_text('[labels]\nseven = "7"\n')
    assert data.load(tmp_path, bundle.manifest).y.tolist() == [3, 7, 4, 7]


def test_raw_samples_are_as_they_are_stored_and_damaged_files_are_left_out(tmp_path):
    save(tmp_path, "a.npz", images(3), np.array([0, 1, 2]))
    save(tmp_path, "b.npz", np.zeros((2, 8, 8)), np.array([9, 9]))
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04 no zip at all")
    assert [(x.dtype, x.shape) for x in data.raw(tmp_path)] == [
        ("uint8", (3, 1, 8, 8)),
        ("float64", (2, 8, 8)),
    ]
    assert [x.shape for x in data.raw(tmp_path / "b.npz")] == [(2, 8, 8)]


def test_a_header_that_python_cannot_read_is_no_array():
    file = io.BytesIO()
    np.save(file, np.zeros((8, 8), np.uint8))
    with pytest.raises(Refused, match=r"not a \.npy file"):
        arrays.decode(file.getvalue().replace(b"(8, 8)", b"(8, 8 "))


def test_names_of_classes_that_are_no_list_leave_the_file_out(tmp_path, bundle):
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 8, 8)), y=np.zeros(1, int), class_names=np.array("zero"))
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 8, 8)), y=np.zeros(1, int))
    samples = open_samples(tmp_path, bundle.manifest)
    assert [skipped.reason for skipped in samples.skipped] == ["class_names is no list of names"]


def lying_archive(path, stated, name="x.npy"):
    """An archive of which a member says that it unpacks to `stated` bytes, in both of its headers."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        x, y = io.BytesIO(), io.BytesIO()
        np.save(x, np.zeros((9000, 1, 8, 8)))
        np.save(y, np.zeros(9000, int))
        archive.writestr(name, x.getvalue())
        archive.writestr("y.npy", y.getvalue())
        size = len(x.getvalue())
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", size), struct.pack("<I", stated)))


@pytest.mark.parametrize("stated", [0, 500, 100_000])
def test_a_member_cannot_unpack_to_more_than_it_says(tmp_path, bundle, stated):
    lying_archive(tmp_path / "a.npz", stated)
    save(tmp_path, "b.npz", images(3), np.array([0, 1, 2]))
    samples = LocalSamples(SampleSource(tmp_path), bundle.manifest, Selection(room_bytes=1 << 20))
    samples.refresh()
    assert len(samples.training) == 3
    assert len(samples.skipped) == 1


@pytest.mark.parametrize("other", ["x", "x.npy"])
def test_the_size_that_is_limited_is_that_of_the_member_that_is_read(tmp_path, bundle, other):
    """Of x and x.npy numpy reads the first, and the limit looked at the last."""
    small, large = io.BytesIO(), io.BytesIO()
    np.save(small, images(2))
    np.save(large, np.zeros((9000, 1, 8, 8)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("x", large.getvalue())
        archive.writestr(other, small.getvalue())
        archive.writestr("y.npy", small.getvalue())
    with pytest.raises(DataError, match="two arrays of one name"):
        open_samples(tmp_path / "a.npz", bundle.manifest, Selection(room_bytes=1 << 20))


@pytest.mark.parametrize(
    "error", [AttributeError("x"), struct.error("short"), zlib.error(), RecursionError(), KeyError(3)]
)
def test_whatever_a_reader_raises_leaves_out_its_file_alone(tmp_path, bundle, monkeypatch, error):
    save(tmp_path, "a.npz", images(3), np.array([0, 1, 2]))
    (tmp_path / "b.csv").write_text(",".join(map(str, range(64))) + ",7\n")

    def read(unit, request):
        raise error
        yield

    broken = SampleFormat(read, read)
    monkeypatch.setitem(listing.WHOLE, ".npz", broken)
    samples = open_samples(tmp_path, bundle.manifest)
    assert samples.training.y.tolist() == [7]
    (skipped,) = samples.skipped
    assert skipped.reason == "cannot be read"
    assert skipped.examples[0].startswith(f"a.npz: {type(error).__name__}")
    assert [len(batch) for batch in data.raw(tmp_path)] == [1]
