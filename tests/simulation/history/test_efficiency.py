"""Learning efficiency: thesis 002, section 6.5."""

from math import isnan

import pytest

from device_runtime.simulation.history.metrics import learning_efficiency


def test_learning_efficiency_is_accuracy_by_seconds_of_training():
    assert learning_efficiency(0.8, 400.0) == pytest.approx(0.002)


def test_where_nobody_trained_there_is_no_efficiency():
    assert isnan(learning_efficiency(0.1, 0.0))
