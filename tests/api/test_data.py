"""Data of simulations as code names it."""

import inspect

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.api import data as sources
from device_runtime.simulation.data import GroupData, load
from device_runtime.simulation.data.spec import SOURCES
from device_runtime.simulation.errors import DataSetError


def test_arrays_are_kept_by_content_and_mapped_into_memory(handwritten, own_place):
    x, y = handwritten
    spec, again = dr.data.arrays(x, y, partition="iid"), dr.data.arrays(x.copy(), y.copy(), alpha=0.1)
    assert spec.path == again.path
    assert len(list((own_place / "cache").iterdir())) == 1
    data_set = load(spec, seed=0)
    assert len(data_set.train_y) + len(data_set.test_y) == len(y)
    assert data_set.labels == tuple("0123456789")
    assert dr.data.arrays(x + 1, y).path != spec.path


def test_arrays_may_have_test_samples_labels_and_clients(handwritten):
    x, y = handwritten
    names = [f"digit {number}" for number in range(10)]
    spec = dr.data.arrays(
        x[:200],
        y[:200],
        test=(x[200:], y[200:]),
        labels=names,
        client=np.arange(200) % 7,
        partition="natural",
    )
    data_set = load(spec, seed=0)
    assert (len(data_set.train_y), len(data_set.test_y), data_set.labels[3]) == (200, 100, "digit 3")
    assert np.unique(data_set.groups).tolist() == list(range(7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda x, y: {"y": y[1:]}, "300 samples in x and 299 in y"),
        (lambda x, y: {"test": (x, y[:7])}, "300 samples in x_test and 7 in y_test"),
        (lambda x, y: {"client": y[:7]}, "300 samples in x and 7 in groups"),
        (
            lambda x, y: {"y": y.astype(object)},
            r"y is object of shape \(300,\), expected an array of numbers",
        ),
        (lambda x, y: {"y": 3}, r"y is int64 of shape \(\), expected"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_and_nothing_is_kept(handwritten, own_place, changes, message):
    x, y = handwritten
    with pytest.raises(DataSetError, match=message):
        dr.data.arrays(**{"x": x, "y": y, **changes(x, y)})
    assert not (own_place / "cache").exists()


def test_arrays_that_cannot_be_kept_are_an_error(handwritten, own_place):
    (own_place / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataSetError, match=r"cannot be kept in .*numpy\.savez"):
        dr.data.arrays(*handwritten)


def test_a_file_of_arrays_is_a_source(handwritten, tmp_path):
    np.savez(tmp_path / "mine.npz", x=handwritten[0], y=handwritten[1])
    assert len(load(dr.data.npz(tmp_path / "mine.npz", test_share=0.5), seed=0).test_y) == 150


def test_every_source_is_named_or_reached_by_its_name():
    named = {name.replace("_", "-") for name in sources.__all__}
    assert named & set(SOURCES) | {"jpeg-npz", "speech-npz"} == set(SOURCES)
    assert dr.data.of_source("jpeg-npz", path="pictures.npz").source == "jpeg-npz"


def test_groups_of_the_fleet_may_be_tables_or_objects():
    tables = dr.data.digits(groups={"weak": {"classes": (7, 8, 9)}})
    assert tables == dr.data.digits(groups={"weak": GroupData(classes=(7, 8, 9))})
    assert tables.groups["weak"].classes == (7, 8, 9)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: dr.data.digits(alfa=0.3), "data.alfa: there is no such key; .*did you mean alpha"),
        (lambda: dr.data.digits(partition="wild"), "partition is 'wild', expected one of iid"),
        (lambda: dr.data.of_source("dreams"), "source is 'dreams'"),
        (lambda: dr.data.of_source("digits", path="a.npz"), "path is a.npz, and source digits has none"),
        (lambda: dr.data.npz("a.npz", test_path="b.npz"), "test_path is b.npz: it is for tables and texts"),
    ],
)
def test_wrong_settings_are_said_at_once(make, message):
    with pytest.raises(DataSetError, match=message):
        make()


def test_the_columns_of_a_table_of_pictures_may_be_named():
    spec = dr.data.images("photos", label_column="kind", client_column="who", partition="natural")
    assert (spec.label_column, spec.client_column) == ("kind", "who")
    assert {"label_column", "client_column"} <= {*inspect.signature(dr.data.images).parameters}
