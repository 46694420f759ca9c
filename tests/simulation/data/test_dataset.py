import numpy as np
import pytest

from simulation.data import DataSet, DataSpec
from simulation.data.dataset import held_out
from simulation.errors import DataSetError

Y = np.repeat(np.arange(5), 20)
WHOLE = DataSet(np.arange(100)[:, None], Y, np.zeros((2, 1)), np.zeros(2, np.int64), tuple("abcde"), Y % 3)


def spec(**settings) -> DataSpec:
    return DataSpec(**settings)


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
