import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.simulation import partition


@pytest.fixture
def labels():
    return np.repeat(np.arange(10), 100)


def skew(labels, alpha):
    """The share of the most frequent class, mean of 20 devices: 0.1 when even, 1 with one class only."""
    parts = partition.dirichlet(labels, 20, alpha, np.random.default_rng(4))
    return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])


@pytest.mark.parametrize("alpha", [0.05, 0.3, 100.0])
def test_devices_get_equally_many_samples_and_none_twice(labels, alpha):
    parts = partition.dirichlet(labels, 7, alpha, np.random.default_rng(1))
    assert [len(part) for part in parts] == [142] * 7  # 1000 / 7, the remainder stays unused
    every = np.concatenate(parts)
    assert len(set(every.tolist())) == len(every)
    assert set(every.tolist()) <= set(range(1000))


def test_every_sample_is_given_away_where_the_devices_divide_them(labels):
    parts = partition.dirichlet(labels, 8, 0.1, np.random.default_rng(2))
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_a_small_alpha_skews_the_classes_and_a_large_one_does_not(labels):
    few, some, many = (skew(labels, alpha) for alpha in (0.05, 0.5, 1000.0))
    assert few > 0.6
    assert few > some > many
    assert many < 0.25


def test_the_same_seed_gives_the_same_parts_and_another_seed_others(labels):
    once, again, other = (
        partition.dirichlet(labels, 5, 0.3, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(once, other, strict=True))


def one_by_one(y, devices, alpha, rng):
    """Hsu et al. to the letter: a class for each sample, without those that have run out."""
    pools = np.bincount(y)
    counts = np.zeros((devices, len(pools)), int)
    for device in range(devices):
        mixture = rng.dirichlet(np.full(len(pools), alpha)) + 1e-9
        for _ in range(len(y) // devices):
            left = mixture * (pools > 0)
            label = rng.choice(len(pools), p=left / left.sum())
            pools[label] -= 1
            counts[device, label] += 1
    return counts


@pytest.mark.slow
def test_classes_are_distributed_as_if_drawn_one_by_one():
    """The spread over devices of how much of their class the first and last have, over many partitions."""
    y = np.repeat(np.arange(4), 12)
    rng = np.random.default_rng(0)

    def ours():
        parts = partition.dirichlet(y, 4, 0.3, rng)
        return np.array([np.bincount(y[part], minlength=4) for part in parts])

    def largest(counts):
        return np.sort(counts, axis=1)[:, ::-1]

    fast = np.mean([largest(ours()) for _ in range(1500)], axis=0)
    slow = np.mean([largest(one_by_one(y, 4, 0.3, rng)) for _ in range(1500)], axis=0)
    # of 12 samples each; a mean of 1500 has a standard error of less than 0.08
    assert np.abs(fast - slow).max() < 0.4


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    devices=st.integers(1, 30),
    alpha=st.sampled_from([0.01, 0.3, 10.0]),
    seed=st.integers(0, 1000),
    how=st.sampled_from(
        ["iid", "dirichlet", "by class", "fedml", "skewed iid", "skewed dirichlet", "sizes by dirichlet"]
    ),
)
def test_no_sample_is_with_two_devices_and_no_device_is_empty(counts, devices, alpha, seed, how):
    y = np.repeat(np.arange(len(counts)), counts)
    devices, rng = min(devices, len(y)), np.random.default_rng(seed)
    skew = partition.Sizes(sigma=1.0)
    parts = {
        "iid": lambda: partition.iid(len(y), devices, rng),
        "dirichlet": lambda: partition.dirichlet(y, devices, alpha, rng),
        "by class": lambda: partition.dirichlet_by_class(y, devices, alpha, rng),
        "fedml": lambda: partition.dirichlet_by_class(y, devices, alpha, rng, capped=True),
        "skewed iid": lambda: partition.iid(len(y), devices, rng, skew),
        "skewed dirichlet": lambda: partition.dirichlet(y, devices, alpha, rng, skew),
        "sizes by dirichlet": lambda: partition.dirichlet(y, devices, alpha, rng, partition.Sizes(alpha=0.2)),
    }[how]()
    assert len(parts) == devices
    assert all(len(part) and (np.diff(part) > 0).all() and part.dtype == np.int64 for part in parts)
    every = np.concatenate(parts)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < len(y)
    if how not in ("iid", "dirichlet"):  # equal sizes leave a remainder
        assert len(every) == len(y)


@given(
    devices=st.integers(1, 40),
    each=st.integers(1, 30),
    seed=st.integers(0, 1000),
    alpha=st.sampled_from([None, 0.01, 1.0]),
)
def test_samples_that_are_used_again_are_never_twice_with_one_device(devices, each, seed, alpha):
    y, rng = np.repeat(np.arange(3), 10), np.random.default_rng(seed)
    sizes = partition.Sizes(each=each, reuse=True)
    if alpha is None:
        parts = partition.iid(len(y), devices, rng, sizes)
    else:
        parts = partition.dirichlet(y, devices, alpha, rng, sizes)
    assert [len(np.unique(part)) for part in parts] == [each] * devices


def test_iid_samples_are_all_used_about_equally_often():
    parts = partition.iid(100, 1000, np.random.default_rng(0), partition.Sizes(each=20, reuse=True))
    used = np.bincount(np.concatenate(parts), minlength=100)
    assert (used == 200).all()  # 20 divides 100: each shuffle is dealt out whole
    assert len({tuple(part.tolist()) for part in parts}) == 1000


def test_dividing_each_class_uses_every_sample_and_gives_sizes_that_differ(labels):
    parts = partition.dirichlet_by_class(labels, 20, 0.3, np.random.default_rng(1))
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert len({len(part) for part in parts}) > 5


def test_dividing_each_class_leaves_nobody_with_less_than_the_least(labels):
    parts = partition.dirichlet_by_class(labels, 90, 0.05, np.random.default_rng(1), least=10)
    assert min(len(part) for part in parts) == 10
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


class Shares:
    """A generator whose Dirichlet draws are given; everything else is as drawn."""

    def __init__(self, shares):
        self.shares, self.other = np.array(shares), np.random.default_rng(0)

    def dirichlet(self, alpha, size):
        return self.shares

    def __getattr__(self, name):
        return getattr(self.other, name)


def test_a_device_with_its_equal_share_gets_none_of_the_classes_that_follow_as_in_fedml():
    """Worked by hand from FedML's partition_class_samples_with_dirichlet_distribution.

    Three classes of 40 among three devices: 40 are an equal share. Device 0 gets it of class 0, so that of
    class 1 the others share 0.3 : 0.1, that is 30 and 10. Of class 2 the first has 40, the others 30 and 10,
    so that they share 0.25 : 0.25.
    """
    y = np.repeat(np.arange(3), 40)
    shares = [[1.0, 0.0, 0.0], [0.6, 0.3, 0.1], [0.5, 0.25, 0.25]]
    parts = partition.dirichlet_by_class(y, 3, 0.1, Shares(shares), capped=True)
    counts = [np.bincount(y[part], minlength=3).tolist() for part in parts]
    assert counts == [[40, 0, 0], [0, 30, 20], [0, 10, 20]]
    plain = partition.dirichlet_by_class(y, 3, 0.1, Shares(shares))
    assert [np.bincount(y[part], minlength=3).tolist() for part in plain] == [
        [40, 24, 20], [0, 12, 10], [0, 4, 10],
    ]  # fmt: skip


def test_labels_need_not_begin_at_zero():
    y = np.repeat([7, 3], 20)
    parts = partition.dirichlet(y, 4, 0.5, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))
