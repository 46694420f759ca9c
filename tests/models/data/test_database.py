import sqlite3
from contextlib import closing

import numpy as np
import pytest

from device_runtime.models import data
from device_runtime.models.data import LocalSamples, SampleSource, open_samples
from device_runtime.models.errors import DataError


@pytest.fixture
def database(tmp_path):
    """Fills a database and gives its path."""

    def filled(rows, columns="x BLOB, label"):
        path = tmp_path / "samples.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS t ({columns})")
            connection.executemany(f"INSERT INTO t VALUES ({','.join('?' * len(rows[0]))})", rows)  # noqa: S608
        return path

    return filled


def query(path, text="SELECT x, label FROM t"):
    return SampleSource.of(f"sqlite:{path}?{text}")


def test_blobs_are_files_or_the_values_of_the_input(database, bundle, digit_png):
    values = np.arange(64, dtype=np.float32)
    rows = [
        (digit_png(255), "7"),
        (values.astype(np.uint8).tobytes(), 3),
        (values.tobytes(), b"1"),
        (b"??", "1"),
    ]
    samples = open_samples(query(database(rows)), bundle.manifest)
    assert samples.training.y.tolist() == [7, 3, 1]
    assert np.array_equal(samples.training.x[1], samples.training.x[2])
    assert samples.training.x[0] == pytest.approx((1 - 0.305) / 0.376)
    assert [(s.reason, s.examples) for s in samples.skipped] == [
        ("unsupported kind of blob", ("row 4: 2 bytes, the input has 64 values",))
    ]


def test_columns_of_numbers_and_a_label_by_its_name(database, bundle):
    columns = ", ".join(f"p{n}" for n in range(64))
    path = database([(7, *range(64)), (3, *range(64)), (None, *range(64))], f"digit, {columns}")
    place = SampleSource(path, f"SELECT digit, {columns} FROM t", label_column="digit")  # noqa: S608
    assert data.load(place, bundle.manifest).y.tolist() == [7, 3]


def test_a_database_that_grows_is_read_again(database, bundle, digit_png):
    samples = open_samples(query(database([(digit_png(), "7")])), bundle.manifest)
    assert not samples.refresh()
    database([(digit_png(1), "3")])
    assert samples.refresh()
    assert samples.training.y.tolist() == [7, 3]


@pytest.mark.parametrize(
    "text, message",
    [
        ("DROP TABLE t", "not authorized"),
        ("INSERT INTO t VALUES (1, 2)", "not authorized"),
        ("PRAGMA user_version = 3", "not authorized"),
        ("SELECT x FROM t", "the query gives no label"),
        ("SELECT other FROM t", "no such column"),
        ("SELECT 1, 2; SELECT 3", "one statement"),
        ("ATTACH '{folder}/other.db' AS o", "not authorized"),
    ],
)
def test_a_query_reads_and_does_nothing_else(database, bundle, text, message):
    path = database([(bytes(64), "7")])
    before = path.read_bytes()
    with pytest.raises(DataError, match=message):
        data.load(query(path, text.format(folder=path.parent)), bundle.manifest)
    assert path.read_bytes() == before
    assert not path.with_name("other.db").exists()


def test_what_is_no_database_is_an_error(tmp_path, bundle):
    (tmp_path / "a.db").write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match="not a database"):
        data.load(query(tmp_path / "a.db"), bundle.manifest)
    with pytest.raises(DataError, match="no data at"):
        data.load(query(tmp_path / "b.db"), bundle.manifest)


@pytest.mark.parametrize("place", ["sqlite:a.db", "sqlite:?SELECT 1", "a.db"])
def test_a_database_without_a_query_says_what_to_give(place):
    with pytest.raises(DataError, match="sqlite:.*QUERY"):
        SampleSource.of(place)


def test_a_sample_as_it_is_stored_does_not_depend_on_its_label(database):
    first, second = data.raw(query(database([(bytes(64), "7"), (bytes(64), "3")])))
    assert np.array_equal(first, second)


def test_a_value_that_is_too_large_for_a_sample_is_not_read(database, bundle, digit_png, monkeypatch):
    monkeypatch.setattr("device_runtime.models.data.database.ONE_SAMPLE_BYTES", 10_000)
    samples = LocalSamples(query(database([(digit_png(), "7"), (bytes(100_000), "7")])), bundle.manifest)
    samples.refresh()
    assert samples.skipped[0].reason == "too large for one sample"
