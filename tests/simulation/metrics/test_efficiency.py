"""Costs as the papers count them, with their figures."""

from math import isnan

import pytest

from device_runtime.simulation.metrics.tally import analytic_bytes, learning_efficiency


def test_the_bytes_of_linear_probing_are_the_thesis_s():
    # Thesis 000, table 3.2 and A.1: SqueezeNet's head on CIFAR-10 is 512 x 10 values, of 100 clients in one
    # round, both ways: 2 * 5120 * 4 * 100 = 4.1e-3 GB.
    assert analytic_bytes(5120, 100, 1, 1.0) == pytest.approx(4.1e-3 * 1e9, rel=0.002)


def test_participation_scales_the_bytes():
    assert analytic_bytes(1000, 100, 10, 0.2) == 2 * 1000 * 4 * 200


def test_learning_efficiency_is_accuracy_by_seconds_of_training():
    assert learning_efficiency(0.8, 400.0) == pytest.approx(0.002)


def test_where_nobody_trained_there_is_no_efficiency():
    assert isnan(learning_efficiency(0.1, 0.0))
