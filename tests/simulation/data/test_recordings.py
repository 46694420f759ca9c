"""Recordings of persons become windows, and no person is on both sides of the split."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from device_runtime.models import data as local_data
from device_runtime.models.bundles.inputs import InputSpec, WindowInput
from device_runtime.models.bundles.targets import targets_of
from device_runtime.simulation.data import DataSpec, divide, load
from device_runtime.simulation.errors import DataSetError


@pytest.fixture
def cut_by(bundle):
    """A bundle of windows of 2 steps of one channel, as far as a source looks at it."""
    spec = InputSpec((1, 2), 0.1, (5.0,), (2.0,), window=WindowInput(2))
    return SimpleNamespace(
        manifest=msgspec.structs.replace(bundle.manifest, input=spec, labels=("sit", "run"))
    )


def people(root, count):
    """Person k records k, k, k, k sitting and 100 + k running."""
    for number in range(count):
        for label, value in (("sit", number), ("run", 100 + number)):
            file = root / f"p{number:02}" / label / "1.csv"
            file.parent.mkdir(parents=True)
            file.write_text("\n".join([str(value)] * 4))
    return str(root)


def test_windows_are_raw_and_of_the_bundles_labels(tmp_path, cut_by):
    data = load(DataSpec(source="recordings", path=people(tmp_path, 5)), 0, cut_by)
    assert data.train_x.shape == (16, 1, 2) and data.test_x.shape == (4, 1, 2)
    assert data.labels == ("sit", "run")
    assert np.array_equal(data.train_y, data.train_x[:, 0, 0] >= 100)
    persons = data.train_x[:, 0, 0].astype(int) % 100
    assert len(set(persons.tolist())) == 4 and not set(persons.tolist()) & set(data.test_x[:, 0, 0] % 100)
    assert len({*zip(persons.tolist(), data.groups.tolist(), strict=True)}) == 4  # a group is a person


def test_persons_of_folder_test_are_evaluated_on(tmp_path, cut_by):
    people(tmp_path / "train", 2)
    people(tmp_path / "test", 3)
    data = load(DataSpec(source="recordings", path=str(tmp_path)), 0, cut_by)
    assert (len(data.train_y), len(data.test_y)) == (8, 12)


def test_what_is_missing_is_said(tmp_path, cut_by, bundle):
    spec = DataSpec(source="recordings", path=str(tmp_path))
    for other in (None, bundle):
        with pytest.raises(DataSetError, match="a scenario whose bundle was exported with --window-step"):
            load(spec, 0, other)
    with pytest.raises(DataSetError, match="has no folders, expected one for each person"):
        load(spec, 0, cut_by)
    people(tmp_path, 1)
    with pytest.raises(DataSetError, match="has 1 person, expected 2 or more to split"):
        load(spec, 0, cut_by)
    (tmp_path / "p01").mkdir()
    with pytest.raises(DataSetError, match="no samples in .*p01: nothing is there"):
        load(spec, 0, cut_by)


def test_numbers_as_targets_are_those_of_a_device_in_original_units(tmp_path, cut_by):
    target = targets_of("mse", ("life",), columns=("life",), mean=(50.0,), std=(10.0,))
    manifest = msgspec.structs.replace(cut_by.manifest, labels=("life",), loss=target)
    for number in range(5):
        file = tmp_path / f"p{number}" / "1.csv"
        file.parent.mkdir()
        file.write_text("x,life\n" + "".join(f"{n},{100 * number - n}\n" for n in range(4)))
    data = load(
        DataSpec(source="recordings", path=str(tmp_path)), 0, SimpleNamespace(manifest=manifest, texts=None)
    )
    assert data.labels == ("life",)
    assert data.train_x.shape == (8, 1, 2)
    for group in range(4):  # windows of rows 0 to 1 and 2 to 3
        own = data.train_y[data.groups == group].ravel()
        assert own[0] - own[1] == 2
        assert own[0] % 100 == 99
    on_device = local_data.load(tmp_path / "p3", manifest)
    assert target.restore(on_device.y).ravel().tolist() == [299, 297]
    assert divide(data, DataSpec(source="recordings", path="a", partition="natural"), 4, 0)


def engines(path, names):
    """Four rows of each engine, in turn: x is 10 times its place plus the time, life counts down."""
    lines = ["x,engine,life"]
    for n in range(4):
        lines += [f"{10 * place + n},{name},{100 - n}" for place, name in enumerate(names)]
    path.write_text("\n".join(lines) + "\n")
    return DataSpec(source="recordings", path=str(path), client_column="engine", partition="natural")


@pytest.fixture
def of_life(cut_by):
    """The bundle whose targets are the hours that are left."""
    target = targets_of("mse", ("life",), columns=("life",), mean=(50.0,), std=(10.0,))
    manifest = msgspec.structs.replace(cut_by.manifest, labels=("life",), loss=target)
    return SimpleNamespace(manifest=manifest, texts=None, path=None)


@pytest.mark.parametrize("source", ["recordings", "table"])
@pytest.mark.parametrize("names", ["abcde", "12345"])
def test_a_column_of_a_table_says_whose_recording_a_row_is_of(tmp_path, of_life, source, names):
    spec = msgspec.structs.replace(engines(tmp_path / "a.csv", names), source=source)
    data = load(spec, 0, of_life)
    assert (data.train_x.shape, data.test_x.shape, data.labels) == ((8, 1, 2), (2, 1, 2), ("life",))
    owners = (data.train_x[:, 0, 0] // 10).astype(int)
    assert set(owners) | set((data.test_x[:, 0, 0] // 10).astype(int)) == set(range(5))
    assert np.array_equal(owners, data.groups)  # engines are numbered as they come
    assert np.array_equal(data.train_x[:, 0, 1], data.train_x[:, 0, 0] + 1)
    assert np.array_equal(data.train_y[:, 0], 100 - data.train_x[:, 0, 1] % 10)
    assert data.notes == ("recording, targets in life", "clients: 5")
    assert [len(part) for part in divide(data, spec, 4, 0)] == [2, 2, 2, 2]


def test_clients_of_recordings_matter_to_every_partition():
    assert DataSpec(source="table", path="a.csv", client_column="engine").partition == "natural"
    assert DataSpec(source="table", path="a.csv").partition == "dirichlet"
    recorded = DataSpec(source="recordings", path="a.csv", client_column="engine", partition="iid")
    assert recorded.without_effect == ()
    assert (
        "client_column has no effect" in msgspec.structs.replace(recorded, source="table").without_effect[0]
    )


def test_a_second_table_of_recordings_is_evaluated_on(tmp_path, of_life):
    other = engines(tmp_path / "b.csv", "z").path
    spec = msgspec.structs.replace(engines(tmp_path / "a.csv", "abc"), test_path=other)
    data = load(spec, 0, of_life)
    assert (len(data.train_x), len(data.test_x)) == (6, 2)


def test_a_parquet_table_of_recordings_is_read(tmp_path, of_life):
    io, core = pytest.importorskip("arro3.io"), pytest.importorskip("arro3.core")
    x, engine = np.arange(12.0), np.repeat(np.arange(3), 4)
    columns = {"x": x, "engine": engine, "life": 100.0 - x}
    arrays = {name: core.Array.from_numpy(values) for name, values in columns.items()}
    io.write_parquet(core.Table.from_pydict(arrays), tmp_path / "a.parquet")
    spec = DataSpec(source="recordings", path=str(tmp_path / "a.parquet"), client_column="engine")
    assert load(spec, 0, of_life).train_y.shape == (4, 1)


def test_recordings_of_one_client_and_columns_that_are_not_there_are_refused(tmp_path, of_life):
    spec = engines(tmp_path / "a.csv", "a")
    with pytest.raises(
        DataSetError, match=r"a.csv is of 1 client, expected 2 or more to split, as in a column"
    ):
        load(spec, 0, of_life)
    with pytest.raises(DataSetError, match="no column 'unit' for the clients: there are x, engine, life"):
        load(msgspec.structs.replace(spec, client_column="unit"), 0, of_life)
    folder = msgspec.structs.replace(spec, path=people(tmp_path / "people", 2))
    with pytest.raises(DataSetError, match="client_column is engine, and .*people is a folder"):
        load(folder, 0, of_life)
