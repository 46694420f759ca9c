import sqlite3
from contextlib import closing

import numpy as np
import pytest

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.data import SampleSource, open_samples
from device_runtime.models.data.local_samples import Selection
from device_runtime.models.data.reading import inputs, target_values
from device_runtime.models.data.report import lines, report
from device_runtime.models.errors import DataError

ROWS = "1,2,3,4,130,-3\n5,6,7,8,70,6\n"
Y = [[1.0, -1.0], [-1.0, 2.0]]  # (130 - 100) / 30, -3 / 3, ..


@pytest.fixture
def houses(exported):
    return Bundle.open(exported.of_loss("mse")).manifest


@pytest.fixture
def flags(exported):
    return Bundle.open(exported.of_loss("bce")).manifest


@pytest.fixture
def reconstructing(exported):
    return Bundle.open(exported.of_loss("mse", "input")).manifest


def read(path, manifest, **settings):
    return open_samples(SampleSource(path, **settings), manifest, Selection()).training


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (ROWS, ""),
        ("w,x,y,z,price,area\n" + ROWS, ""),
        ("w,x,y,z,eur,m2\n" + ROWS, "eur, m2"),
        (ROWS, "4,5"),
        ("Area,w,x,price,y,z\n-3,1,2,130,3,4\n6,5,6,70,7,8\n", ""),
    ],
)
def test_a_table_has_its_targets_in_columns(tmp_path, houses, text, columns):
    (tmp_path / "a.csv").write_text(text)
    samples = read(tmp_path / "a.csv", houses, label_column=columns)
    assert (samples.x.tolist(), samples.y.tolist()) == ([[1, 2, 3, 4], [5, 6, 7, 8]], Y)
    assert samples.y.dtype == np.float32
    assert samples.class_counts(2) == (2,)


@pytest.mark.parametrize(
    ("text", "columns", "hint"),
    [
        ("w,x,y,z,price,size\n" + ROWS, "", "no column 'area' for the labels or targets: there are w, x,"),
        (ROWS, "4", "another number of columns of targets: 4; the task has price, area"),
        ("1,2,3,4,130,much\n", "", "a target that is no number: row 1: area is 'much'"),
        ("1,2,3,4,130,\n", "", "a target that is no number"),
        ("1,2,3,4,130,inf\n", "", "not what the task's loss takes: 1 .*not finite"),
    ],
)
def test_a_table_without_its_targets_is_refused_with_what_was_expected(tmp_path, houses, text, columns, hint):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=hint.replace(": ", r": .*", 1)):
        read(tmp_path / "a.csv", houses, label_column=columns)


def test_a_row_with_a_wrong_target_is_skipped(tmp_path, houses):
    (tmp_path / "a.csv").write_text(ROWS + "1,1,1,1,none,2\n")
    samples = open_samples(tmp_path / "a.csv", houses)
    assert len(samples.training) == 2
    assert [(entry.reason, entry.count) for entry in samples.skipped] == [("a target that is no number", 1)]


def test_arrays_have_targets_as_numbers(tmp_path, houses, flags):
    x = np.arange(8.0).reshape(2, 4)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([[130, -3], [70, 6]]))
    assert read(tmp_path / "a.npz", houses).y.tolist() == Y
    np.savez(tmp_path / "b.npz", x=x, y=np.array([[0, 1, 1], [0, 0, 0]]))
    assert read(tmp_path / "b.npz", flags).y.tolist() == [[0, 1, 1], [0, 0, 0]]
    np.savez(tmp_path / "c.npz", x=x, y=np.array([[0, 2, 1], [0, 0, 0]]))
    assert read(tmp_path / "c.npz", flags).y.tolist() == [[0, 0, 0]]  # the other sample is left out
    np.savez(tmp_path / "d.npz", x=x, y=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"y is float64 \(3, 2\), expected targets of each of the 2 samples"):
        read(tmp_path / "d.npz", houses)


def test_a_query_gives_targets_by_the_names_of_its_columns(tmp_path, houses):
    with closing(sqlite3.connect(tmp_path / "d.db")) as database:
        database.execute("create table t (price real, w real, x real, y real, z real, area real)")
        database.execute("insert into t values (130, 1, 2, 3, 4, -3)")
        database.commit()
    samples = open_samples(SampleSource(tmp_path / "d.db", "select * from t"), houses).training
    assert (samples.x.tolist(), samples.y.tolist()) == ([[1, 2, 3, 4]], Y[:1])


def test_a_reconstruction_needs_no_labels(tmp_path, reconstructing):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4)))
    (tmp_path / "b.csv").write_text("1,2,3,4\n5,6,7,8\n")
    np.save(tmp_path / "c.npy", np.zeros((2, 4)))
    samples = read(tmp_path, reconstructing)
    assert (len(samples), samples.y.tolist()) == (7, [0] * 7)


def test_anomalies_are_held_out_of_training(tmp_path, reconstructing):
    (tmp_path / "a.csv").write_text("a,b,c,d,label\n1,2,3,4,normal\n9,9,9,9,anomaly\n5,6,7,8,normal\n")
    samples = open_samples(tmp_path / "a.csv", reconstructing)
    assert samples.training.y.tolist() == [0, 0]
    assert (samples.holdout.x.tolist(), samples.holdout.y.tolist()) == ([[9.0] * 4], [1])
    assert sorted(samples.everything.y.tolist()) == [0, 0, 1]


def test_targets_are_left_out_of_what_is_predicted_from(tmp_path, houses):
    for name, text in (("a", "w,x,y,z,price,area\n" + ROWS), ("b", "1,2,3,4\n5,6,7,8\n"), ("c", ROWS)):
        (tmp_path / f"{name}.csv").write_text(text)
        x = inputs(tmp_path / f"{name}.csv", houses.input, houses.labels, target=houses.target)
        assert x.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]], name


def test_targets_are_read_in_original_units_to_standardise_them(tmp_path, houses):
    (tmp_path / "a.csv").write_text(ROWS)
    assert target_values(tmp_path / "a.csv", houses.input, houses.target).tolist() == [[130, -3], [70, 6]]


def test_the_report_has_the_range_of_each_column(tmp_path, houses):
    (tmp_path / "a.csv").write_text("w,x,y,z,price,area\n" + ROWS)
    text = lines(report(open_samples(tmp_path / "a.csv", houses)))
    assert "price: 70 to 130, mean 100" in text
    assert "area: -3 to 6, mean 1.5" in text
