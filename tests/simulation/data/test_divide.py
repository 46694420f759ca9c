import msgspec
import numpy as np
import pytest

from simulation.data import DataSet, DataSpec, divide, load
from simulation.errors import DataSetError

EVERY = (
    {"partition": "iid"},
    {"partition": "iid", "quantity_sigma": 1.0},
    {"partition": "iid", "quantity_alpha": 0.5},
    {"partition": "iid", "samples_per_client": 90, "reuse": True},
    {"partition": "dirichlet"},
    {"partition": "dirichlet", "quantity_sigma": 0.5, "min_samples": 5},
    {"partition": "dirichlet", "samples_per_client": 90, "reuse": True},
    {"partition": "dirichlet-by-class", "alpha": 0.1},
    {"partition": "shards"},
    {"partition": "classes", "classes_per_client": 3},
    {"partition": "natural"},
    {"partition": "natural", "samples_per_client": 3},
)


@pytest.fixture(scope="module")
def data():
    y = np.random.default_rng(0).integers(0, 10, 1000)
    x = np.arange(1000, dtype=np.int32)
    return DataSet(x, y, x[:9], y[:9], tuple("0123456789"), np.arange(1000) // 10)


@pytest.mark.parametrize("fields", EVERY, ids=str)
def test_a_seed_gives_the_same_parts_and_another_others(data, fields):
    spec = DataSpec(**fields)
    one, again, other = (divide(data, spec, 20, seed) for seed in (1, 1, 2))
    assert len(one) == 20
    assert all(len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in one)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("fields", EVERY, ids=str)
def test_nothing_is_given_twice_unless_asked_for(data, fields):
    every = np.concatenate(divide(data, DataSpec(**fields), 20, 3))
    assert (len(np.unique(every)) == len(every)) != fields.get("reuse", False)


@pytest.mark.parametrize("partition", ["natural", "dirichlet-by-class", "shards", "classes"])
def test_samples_per_client_is_a_most_where_sizes_follow_from_the_data(data, partition):
    parts = divide(data, DataSpec(partition=partition, samples_per_client=4), 20, 0)
    assert max(len(part) for part in parts) == 4


def test_more_devices_than_samples_is_an_error(data):
    with pytest.raises(DataSetError, match="1001 devices, but 1000 training samples: each needs one sample"):
        divide(data, DataSpec(), 1001, 0)
    with pytest.raises(DataSetError, match="fewer devices, or reuse = true with samples_per_client$"):
        divide(data, DataSpec(), 1001, 0)
    with pytest.raises(DataSetError, match="fewer devices$"):  # shards are not given twice
        divide(data, DataSpec(partition="shards"), 1001, 0)
    with pytest.raises(DataSetError, match="101 devices, but 1000 .* each needs 10 samples at least"):
        divide(data, DataSpec(min_samples=10), 101, 0)
    with pytest.raises(DataSetError, match="0 devices, expected 1 or more"):
        divide(data, DataSpec(), 0, 0)


def test_natural_needs_groups():
    with pytest.raises(DataSetError, match="source digits does not say whose its samples are"):
        spec = DataSpec(partition="natural")
        divide(load(spec, 0), spec, 3, 0)


def test_many_devices_of_few_samples():
    y = np.arange(50_000) % 10
    data = DataSet(y, y, y[:1], y[:1], tuple("0123456789"))
    parts = divide(data, DataSpec(alpha=0.1), 10_000, 0)
    assert [len(part) for part in parts] == [5] * 10_000
    assert len(np.unique(np.concatenate(parts))) == 50_000


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "nope"}, "source is 'nope', expected one of digits, npz"),
        ({"partition": "nope"}, "partition is 'nope', expected one of iid, dirichlet, "),
        ({"alpha": 0}, "alpha"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"partition": "shards", "quantity_sigma": 1.0}, "partition shards takes no quantity_sigma"),
        ({"quantity_sigma": 1.0, "quantity_alpha": 1.0}, "both given"),
        ({"reuse": True}, "reuse = true needs samples_per_client"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(fields, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(fields, DataSpec)


def test_the_default_is_the_digits_of_the_demo():
    from simulation import digits

    data, demo = load(DataSpec(), 4), digits.load(np.random.default_rng(4))
    assert np.array_equal(data.train_x, demo.train.x)
    assert np.array_equal(data.test_y, demo.test.y)
    assert len(data.labels) == 10
