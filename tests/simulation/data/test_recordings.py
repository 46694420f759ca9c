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
