from dataclasses import replace

import numpy as np
import pytest

from device_runtime.simulation.data import DataSet, DataSpec, load
from device_runtime.simulation.data.dataset import Samples, held_out, limited, of_classes, split, validated
from device_runtime.simulation.errors import DataSetError

Y = np.repeat(np.arange(5), 20)
X = np.arange(100)[:, None]
X.flags.writeable = False  # else rows of it may be moved
WHOLE = DataSet(X, Y, np.zeros((2, 1)), np.zeros(2, np.int64), tuple("abcde"), Y % 3)


def spec(**settings) -> DataSpec:
    return DataSpec(**settings)


def test_only_samples_of_the_classes_stay_numbered_in_their_order():
    data = of_classes(replace(WHOLE, test_y=np.array([3, 0])), spec(classes=(3, 1)), "there")
    assert data.labels == ("d", "b")
    assert data.train_x[:, 0].tolist() == [*range(20, 40), *range(60, 80)]
    assert data.train_y.tolist() == [1] * 20 + [0] * 20
    assert data.groups.tolist() == [1] * 20 + [0] * 20  # Y % 3
    assert data.test_y.tolist() == [0]


def test_no_classes_named_are_all_of_them():
    assert of_classes(WHOLE, spec(), "there") is WHOLE


@pytest.mark.parametrize(
    ("classes", "says"), [((5,), "there: classes has 5, expected 0 to 4"), ((1,), "there: no test samples")]
)
def test_classes_without_samples_are_an_error(classes, says):
    with pytest.raises(DataSetError, match=says):
        of_classes(WHOLE, spec(classes=classes), "there")


@pytest.mark.parametrize("classes", [(), (1, 1)])
def test_classes_are_one_or_more_each_once(classes):
    with pytest.raises(ValueError, match="expected one or more, each once"):
        spec(classes=classes)


def test_a_source_gives_only_the_classes_that_are_asked_for():
    data = load(spec(source="digits", classes=(7, 2), max_train=100), seed=0)
    assert data.labels == ("7", "2")
    assert len(data.train_y) == 100
    assert set(data.train_y.tolist()) == {0, 1}


def test_a_share_of_the_training_samples_is_evaluated_on_and_trained_by_nobody():
    data = validated(WHOLE, spec(validation_share=0.2), seed=4)
    assert len(data.test_y) == 20
    assert sorted([*data.test_x[:, 0], *data.train_x[:, 0]]) == list(range(100))
    for x, y in ((data.test_x, data.test_y), (data.train_x, data.train_y)):
        assert (Y[x[:, 0]] == y).all()
    assert (data.groups == data.train_y % 3).all()
    assert (validated(WHOLE, spec(validation_share=0.2), seed=5).test_x != data.test_x).any()
    assert validated(WHOLE, spec(), seed=4) is WHOLE


def test_generic_samples_are_of_so_many_classes_and_nobody_trains_on_them():
    data = held_out(WHOLE, spec(generic_samples=30, generic_classes=3), seed=4)
    assert len(data.generic.y) == 30
    assert len(set(data.generic.y.tolist())) == 3
    assert sorted([*data.generic.x[:, 0], *data.train_x[:, 0]]) == list(range(100))
    for x, y in ((data.generic.x, data.generic.y), (data.train_x, data.train_y)):
        assert (Y[x[:, 0]] == y).all()
    assert (data.groups == data.train_y % 3).all()


def test_the_seed_draws_both_classes_and_samples():
    drawn = [held_out(WHOLE, spec(generic_samples=30, generic_classes=3), seed).generic for seed in (1, 1, 2)]
    assert (drawn[0].x == drawn[1].x).all()
    assert set(drawn[0].y.tolist()) != set(drawn[2].y.tolist())


def test_of_all_classes_where_no_number_is_given_and_nothing_where_nothing_is():
    assert set(held_out(WHOLE, spec(generic_samples=99), 0).generic.y.tolist()) == set(range(5))
    assert held_out(WHOLE, spec(), 0) is WHOLE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"generic_samples": 41, "generic_classes": 2}, "41: 2 classes have 40 training samples, of 100"),
        ({"generic_samples": 100}, "100: 5 classes have 100 training samples, of 100"),
        ({"generic_samples": 9, "generic_classes": 6}, "generic_classes is 6, the data has 5"),
    ],
)
def test_more_than_there_is_cannot_be_held_out(settings, says):
    with pytest.raises(DataSetError, match=says):
        held_out(WHOLE, spec(**settings), 0)


def test_classes_of_no_samples_are_a_mistake():
    with pytest.raises(ValueError, match="generic_classes is for generic_samples"):
        spec(generic_classes=3)


CUTS = {
    "validation_share": (validated, {"validation_share": 0.2}),
    "max_train": (limited, {"max_train": 70}),
    "generic_samples": (held_out, {"generic_samples": 30, "generic_classes": 3}),
}


@pytest.mark.parametrize("name", CUTS)
def test_what_stays_of_own_arrays_stays_in_their_memory_and_is_the_same(name):
    cut, settings = CUTS[name]
    own = X.copy()
    expected, data = (cut(replace(WHOLE, train_x=x), spec(**settings), 4) for x in (X, own))
    assert np.shares_memory(data.train_x, own)
    for actual, other in ((data.train_x, expected.train_x), (data.test_x, expected.test_x)):
        assert actual.tolist() == other.tolist()
    if expected.generic is not None:
        assert data.generic.x.tolist() == expected.generic.x.tolist()


def test_classes_stay_in_the_memory_of_own_arrays_unless_they_are_few():
    for classes, shared in (((0, 1, 3, 4), True), ((2,), False)):
        own = X.copy()
        whole = replace(WHOLE, train_x=own, test_y=np.array([classes[0]] * 2))
        data = of_classes(whole, spec(classes=classes), "there")
        assert data.train_x[:, 0].tolist() == [k for k in range(100) if Y[k] in classes]
        assert np.shares_memory(data.train_x, own) == shared


def test_a_split_in_place_is_that_of_copies_and_leaves_read_only_arrays_as_they_are():
    own = X.copy()
    copied, moved, mapped = (
        split(Samples(x, Y.copy(), tuple("abcde")), 0.2, 7, in_place)
        for x, in_place in ((X.copy(), False), (own, True), (X, True))
    )
    assert np.shares_memory(moved.train_x, own) and np.shares_memory(moved.test_x, own)
    assert not np.shares_memory(mapped.train_x, X)
    for data in (moved, mapped):
        assert data.train_x.tolist() == copied.train_x.tolist()
        assert data.test_x.tolist() == copied.test_x.tolist()
