"""Who took part, worked by hand."""

from math import isnan

import pytest

from device_runtime.simulation.history.metrics import jain, participation


def test_all_equally_often_is_fair():
    assert jain([3, 3, 3, 3], 4) == 1


def test_k_of_n_and_the_others_never_is_k_by_n():
    assert jain([5, 5], 8) == pytest.approx(2 / 8)


def test_uneven_counts():
    assert jain([1, 2, 3], 4) == pytest.approx(36 / (4 * 14))


def test_nobody_is_neither_fair_nor_unfair():
    assert isnan(jain([], 10))


def test_shares_are_of_the_whole_fleet_and_of_all_asks():
    took_part = participation([2, 0, 1], devices=10, asks=6)
    assert (took_part.devices, took_part.asks) == (0.2, 0.5)
    assert took_part.fairness == pytest.approx(9 / (10 * 5))
