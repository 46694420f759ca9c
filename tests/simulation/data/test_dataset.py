from dataclasses import replace

import numpy as np
import pytest

from device_runtime.simulation.data import DataSet, DataSpec, load
from device_runtime.simulation.data.dataset import held_out, of_classes, validated
from device_runtime.simulation.errors import DataSetError

Y = np.repeat(np.arange(5), 20)
WHOLE = DataSet(np.arange(100)[:, None], Y, np.zeros((2, 1)), np.zeros(2, np.int64), tuple("abcde"), Y % 3)


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
