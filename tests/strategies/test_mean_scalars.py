import numpy as np

from strategies.kind import Late
from strategies.mean_scalars import MeanScalars, group_of

NOW = Late(7, 70, 1.0)


def test_a_group_weighs_by_its_samples_in_the_plain_mean():
    state = MeanScalars(2).add(np.array([1.0, 2.0]), 30, None, 4)
    state = state.add(np.array([3.0, 0.0]), 10, None, 1).add(np.array([5.0, 2.0]), 20, None, 4)
    [mean] = state.means(NOW)
    assert mean.indices == (2, 3, 8, 9)
    ones, fours = np.array([3.0, 0.0]), np.array([2.6, 2.0])  # (30 * 1 + 20 * 5) / 50
    np.testing.assert_allclose(mean.scalars, [*(2 * 10 / 60 * ones), *(2 * 50 / 60 * fours)])
    assert mean.share == 1.0


def test_what_comes_late_is_along_directions_of_its_own_round():
    late = Late(5, 50, 0.5)
    state = MeanScalars(1).add(np.array([4.0]), 10, late, 2).add(np.array([1.0]), 30, None, 0)
    first, second = state.means(NOW)
    assert (first.of, first.indices, first.scalars.tolist(), first.share) == (late, (2,), [4.0], 0.25)
    assert (second.of, second.indices, second.share) == (NOW, (0,), 0.75)
    assert state.whole == 40


def test_groups_are_by_name_and_all_of_them_are_used():
    groups = [group_of(f"device-{n}", 16) for n in range(400)]
    assert set(groups) == set(range(16))
    assert groups[:3] == [group_of(f"device-{n}", 16) for n in range(3)]
    assert {group_of(f"device-{n}", 1) for n in range(9)} == {0}


def test_the_group_of_a_name_is_for_ever():
    """Sha-256 of the name, its first eight bytes, the least first: devices and aggregator must agree."""
    assert group_of("pi-1", 256) == group_of("pi-1", 2**20) % 256
    assert group_of("", 2**16) == 0xB0E3  # of no bytes it is e3b0c442...
