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
            r"y is object of shape \(300,\), expected an array of numbers or names",
        ),
        (lambda x, y: {"y": 3}, r"y is int64 of shape \(\), expected"),
        (lambda x, y: {"x": ["a"] * 300}, r"x is <U1 of shape \(300,\), expected an array of numbers$"),
        (lambda x, y: {"y": ["a"] * 300, "labels": ["a"]}, "y are names of classes: leave out labels"),
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


def test_classes_and_clients_of_arrays_may_be_names(handwritten):
    x, y = handwritten
    names = [f"digit {number}" for number in y]
    who = np.array(["ann", "bob", "eve"] * 100, object)
    data_set = load(dr.data.arrays(x, names, client=who, partition="natural"), seed=0)
    assert data_set.labels == tuple(f"digit {number}" for number in range(10))
    assert np.unique(data_set.groups).tolist() == [0, 1, 2]


@pytest.fixture
def houses():
    """Twelve houses of three cities."""
    pandas = pytest.importorskip("pandas")
    columns = {
        "rooms": [float(n) for n in range(12)],
        "garden": [n % 2 == 0 for n in range(12)],
        "city": ["Graz", "Linz", "Wien"] * 4,
        "price": [10.5 * n for n in range(12)],
    }
    return pandas.DataFrame(columns)


def test_a_frame_has_features_targets_and_clients_by_their_names(houses, own_place):
    spec = dr.data.frame(houses, label_column="price", client_column="city", partition="natural")
    data_set = load(spec, seed=0)
    x, y = (np.concatenate([getattr(data_set, f"{part}_{of}") for part in ("train", "test")]) for of in "xy")
    assert x.shape == (12, 2) and np.array_equal(y[:, 0], 10.5 * x[:, 0])
    assert np.array_equal(x[:, 1], x[:, 0] % 2 == 0)
    assert np.array_equal(data_set.groups, data_set.train_x[:, 0] % 3)
    again = dr.data.frame(houses.copy(), label_column="city", feature_columns=["rooms"])
    assert again.path == spec.path and len(list((own_place / "cache").iterdir())) == 1
    chosen = load(again, seed=0)
    assert (chosen.train_x.shape[1:], chosen.labels) == ((1,), ("Graz", "Linz", "Wien"))


def test_a_named_index_is_a_column_and_a_second_frame_is_evaluated_on(houses):
    by_city = houses.set_index("city")
    spec = dr.data.frame(by_city, test=by_city[:2], label_column="price", client_column="city")
    data_set = load(spec, seed=0)
    assert (len(data_set.train_y), len(data_set.test_y)) == (12, 2)
    assert np.unique(data_set.groups).tolist() == [0, 1, 2]


def test_a_frame_s_names_are_never_taken_for_a_row(houses):
    """Names that are numbers, above as many numbers, could be a row of a file."""
    frame = houses[["rooms", "price", "city"]].set_axis(["0", "1", "kind"], axis=1)
    data_set = load(dr.data.frame(frame, label_column="2"), seed=0)
    assert (len(data_set.train_y) + len(data_set.test_y), data_set.labels) == (12, ("Graz", "Linz", "Wien"))


def test_rows_of_a_frame_that_cannot_be_read_are_said_by_row_and_column(houses):
    houses.loc[3, "rooms"] = None
    data_set = load(dr.data.frame(houses, label_column="price", client_column="city"), seed=0)
    assert len(data_set.train_y) + len(data_set.test_y) == 11
    [note] = [note for note in data_set.notes if note.startswith("left out")]
    assert note.startswith("left out: a feature that is no number: 1 (frame-")
    assert note.endswith(".csv row 5: column 'rooms': '')")


def test_texts_of_a_frame_may_hold_separators_and_line_ends():
    pandas = pytest.importorskip("pandas")
    texts = pandas.DataFrame({"said": ['a "b", c', "d\ne", "f", "g"], "mood": ["good", "bad"] * 2})
    data_set = load(dr.data.frame(texts, text_column="said", label_column="mood"), seed=0)
    assert (len(data_set.train_y) + len(data_set.test_y), data_set.labels) == (4, ("bad", "good"))


def test_what_has_to_pandas_is_taken_and_anything_else_refused(houses):
    class Other:
        def to_pandas(self):
            return houses

    assert dr.data.frame(Other()).path == dr.data.frame(houses).path
    with pytest.raises(DataSetError, match=r"list is no table: expected a pandas\.DataFrame"):
        dr.data.frame([[1, 2]])
    with pytest.raises(DataSetError, match="the frame of rooms, garden, city, price has no rows"):
        dr.data.frame(houses[:0])
    with pytest.raises(DataSetError, match="feature_columns is rooms: it is for table, recordings, not text"):
        dr.data.frame(houses, text_column="city", feature_columns="rooms")
