import numpy as np
import pytest

from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.errors import DataSetError

X = np.arange(40, dtype=np.uint8).reshape(10, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0], np.int16)


def spec(path, **fields):
    return DataSpec(source="npz", path=str(path), **fields)


def test_a_file_without_a_split_is_split_without_loss_and_groups_stay_with_their_samples(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y, groups=np.arange(10) * 7)
    data = load(spec(tmp_path / "d.npz", test_share=0.3), 5)
    assert (len(data.train_y), len(data.test_y)) == (7, 3)
    rows = np.concatenate([data.train_x, data.test_x])[:, 0, 0] // 4
    assert sorted(rows.tolist()) == list(range(10))
    assert (data.train_x[:, 0, 0] // 4 * 7).tolist() == data.groups.tolist()
    assert Y[data.train_x[:, 0, 0] // 4].tolist() == data.train_y.tolist()
    assert (data.train_y.dtype, data.labels) == (np.int64, ("0", "1", "2"))
    again, other = (load(spec(tmp_path / "d.npz", test_share=0.3), seed) for seed in (5, 6))
    assert np.array_equal(again.test_x, data.test_x)
    assert not np.array_equal(other.test_x, data.test_x)


def test_a_split_and_names_of_classes_are_kept(tmp_path):
    np.savez(
        tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], class_names=["a", "b", "c"]
    )
    data = load(spec(tmp_path / "d.npz"), 0)
    assert (data.labels, data.groups) == (("a", "b", "c"), None)
    assert np.array_equal(data.train_x, X)
    assert np.array_equal(data.test_y, Y[:2])


def test_a_folder_of_npy_files_is_mapped_into_memory(tmp_path):
    for name, array in (("x_train", X), ("y_train", Y), ("x_test", X), ("y_test", Y)):
        np.save(tmp_path / f"{name}.npy", array)
    data = load(spec(tmp_path), 0)
    assert isinstance(data.train_x, np.memmap)
    assert np.array_equal(data.train_x, X)


def test_max_keeps_a_random_part_in_its_order(tmp_path):
    np.savez(tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X, y_test=Y, groups=np.arange(10))
    data = load(spec(tmp_path / "d.npz", max_train=4, max_test=3), 1)
    assert (len(data.train_y), len(data.test_y)) == (4, 3)
    assert data.groups.tolist() == sorted(data.groups.tolist())
    assert np.array_equal(data.train_x, X[data.groups])
    assert np.array_equal(data.train_y, Y[data.groups])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": X}, "has no array 'x': it has a; expected x and y, or x_train"),
        (
            {"x": X, "y": Y.astype(complex)},
            r"y is complex128 \(10,\), expected one integer for each",
        ),
        ({"x": X, "y": Y[:5]}, r"y is int16 \(5,\), expected one integer for each"),
        ({"x": X, "y": Y, "labels": ["one", "two"]}, "a class number without a name: 0 to 2 of 2"),
        ({"x": X, "y": Y - 1}, "label -1, expected 0"),
        ({"x": X.astype(str), "y": Y}, r"x is <U3 \(10, 2, 2\), expected numbers"),
        ({"x": X, "y": Y, "groups": Y[:3]}, r"\(3,\) groups for 10 samples"),
        ({"x": X[:1], "y": Y[:1]}, "1 samples, expected 2 or more"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, 0], "y_test": Y}, r"\(2, 2\), test samples \(2,\)"),
        ({"x_train": X, "y_train": Y, "x_test": X[:0], "y_test": Y[:0]}, "no test samples"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(DataSetError, match=message) as caught:
        load(spec(tmp_path / "d.npz"), 0)
    assert "\n" not in str(caught.value)


def test_what_is_no_npz_or_not_there_is_said(tmp_path):
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataSetError, match=r"d\.npz: not a \.npz file: .*; expected x and y, or x_train"):
        load(spec(tmp_path / "d.npz"), 0)
    (tmp_path / "words.tsv").write_text("good\t1\n")
    with pytest.raises(DataSetError, match=r"words\.tsv: not a \.npz file: .* in a \.npz file or folder"):
        load(spec(tmp_path / "words.tsv"), 0)
    with pytest.raises(DataSetError, match="no such file or folder"):
        load(spec(tmp_path / "other.npz"), 0)
    with pytest.raises(DataSetError, match="source npz needs a path"):
        load(spec(""), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_samples_that_are_not_finite_are_left_out_and_counted_as_on_a_device(tmp_path, value):
    x = X.astype(np.float64)
    x[[3, 7], 1, 0] = value
    np.savez(tmp_path / "d.npz", x=x, y=Y)
    data = load(spec(tmp_path / "d.npz"), 0)
    assert len(data.train_y) + len(data.test_y) == 8
    assert data.notes == ("left out: values are not finite: 2 of 10 samples",)
    np.savez(tmp_path / "d.npz", x_train=X.astype(float), y_train=Y, x_test=x, y_test=Y)
    assert len(load(spec(tmp_path / "d.npz"), 0).test_y) == 8
    np.savez(tmp_path / "d.npz", x=np.full_like(x, value), y=Y)
    with pytest.raises(DataSetError, match="d.npz: no readable samples; .*not finite: 10 of 10 samples"):
        load(spec(tmp_path / "d.npz"), 0)


@pytest.mark.parametrize("clients", [np.arange(10) % 3, np.arange(10) % 3 / 1, np.array([*"abcabcabca"])])
def test_clients_may_be_numbers_or_names_in_an_array_of_any_name(tmp_path, clients):
    np.savez(tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X, y_test=Y, writer_train=clients)
    for name in ("writer", "writer_train"):
        assert load(spec(tmp_path / "d.npz", client_column=name), 0).groups.tolist() == [0, 1, 2] * 3 + [0]


def test_an_array_of_clients_that_does_not_fit_is_refused(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y, speed=np.arange(10) + 0.5)
    with pytest.raises(DataSetError, match="no array 'who' for the clients: it has speed, x, y$"):
        load(spec(tmp_path / "d.npz", client_column="who"), 0)
    with pytest.raises(DataSetError, match="groups are float64, expected integers or names"):
        load(spec(tmp_path / "d.npz", client_column="speed"), 0)
