import numpy as np
import pytest

from simulation import partition


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
