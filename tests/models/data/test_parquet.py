"""Parquet tables, by the extra."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import SampleSource, open_samples
from device_runtime.models.errors import DataError
from device_runtime.simulation.data import DataSpec, load

arro3 = pytest.importorskip("arro3.io")
core = pytest.importorskip("arro3.core")


@pytest.fixture
def animals(bundle):
    return msgspec.structs.replace(bundle.manifest, input=InputSpec((2,)), labels=("cat", "dog"))


def written(path, count=600, **columns):
    usual = {
        "kind": core.Array(["cat" if i % 3 else "dog" for i in range(count)], core.DataType.string()),
        "width": core.Array.from_numpy(np.arange(count) / 4),
        "flag": core.Array([bool(i % 2) for i in range(count)], core.DataType.bool()),
    }
    arro3.write_parquet(core.Table.from_pydict({**usual, **columns}), path)
    return path


def test_a_parquet_table_is_read_as_a_csv_of_the_same_cells(tmp_path, animals):
    path = written(tmp_path / "a.parquet")
    rows = [f"{'cat' if i % 3 else 'dog'},{i / 4},{'True' if i % 2 else 'False'}" for i in range(600)]
    (tmp_path / "a.csv").write_text("\n".join(["kind,width,flag", *rows]))
    samples, same = (open_samples(tmp_path / name, animals) for name in ("a.parquet", "a.csv"))
    assert len(samples.training) == 600
    assert np.array_equal(samples.training.x, same.training.x)
    assert samples.training.y.tolist() == same.training.y.tolist()
    data = load(DataSpec(source="table", path=str(path)), 0)
    assert (data.labels, data.notes) == (("cat", "dog"), ("label: column 'kind' (it alone holds words)",))


def test_a_cell_without_a_value_leaves_out_its_row(tmp_path, animals):
    path = written(tmp_path / "a.parquet", 3, width=core.Array([1.0, None, 2.0], core.DataType.float64()))
    samples = open_samples(SampleSource(path, label_column="kind"), animals)
    assert len(samples.training) == 2
    assert [str(entry) for entry in samples.skipped] == [
        "a feature that is no number: 1 (a.parquet row 3: column 'width': '')"
    ]


def test_what_is_no_parquet_and_what_lacks_the_extra_is_said(tmp_path, animals, monkeypatch):
    whole = written(tmp_path / "a.parquet").read_bytes()
    for damaged in (b"PAR1 and no more", whole[:-9], whole[:-40] + b"x" * 32 + whole[-8:]):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(DataError, match="not a .parquet file"):
            open_samples(tmp_path / "a.parquet", animals)
    monkeypatch.setitem(sys.modules, "arro3.io", None)
    with pytest.raises(DataError, match=r"needs an extra.*pip install 'device-runtime\[parquet\]', or"):
        open_samples(tmp_path / "a.parquet", animals)


def test_a_file_that_ends_the_library_s_process_is_left_out(animals, caplog):
    """Found by mutation: a column that begins at a negative place is a panic that nothing catches."""
    path = Path(__file__).with_name("aborts.parquet")
    with pytest.raises(
        DataError, match=r"not a .parquet file: 1 \(aborts.parquet: it is damaged: the library"
    ):
        open_samples(path, animals)
