import numpy as np
import pytest

from device_runtime.broker.wire.messages import Shortages
from device_runtime.strategies.statistics import shortages


def round_of(*devices, before=None):
    """The memory after a round of (counts, richest) by device."""
    trained = shortages.TrainedClasses(3)
    for counts, richest in devices:
        trained.add(np.array(counts, np.float64), 1, richest)
    return trained.after(before or {})


def pool(*counts):
    return {"counts": np.array(counts, np.float64)}


def test_a_class_lacks_what_it_has_less_than_the_mean_of_the_classes_there_are():
    """Of 60, 20 and 10 the mean is 30; trained on were 1.5, 0.5 and 0 devices, of a mean of 1."""
    memory = round_of(([3, 1, 0], True), ([3, 1, 0], False))
    assert shortages.class_shortages(pool(60, 20, 10), memory) == Shortages(
        bytes([0, 33, 67]), bytes([0, 50, 100])
    )


def test_each_device_adds_one_in_total_whatever_it_says_of_its_samples():
    memory = round_of(([10**9, 0, 0], True), ([0, 2, 2], False))
    np.testing.assert_allclose(memory["trained"], [1, 0.5, 0.5])


def test_what_was_trained_on_fades_by_a_tenth_each_round():
    memory = round_of(([0, 4, 0], False), before=round_of(([4, 0, 0], True)))
    np.testing.assert_allclose(memory["trained"], [0.9, 1, 0])
    assert memory["richest"] == pytest.approx(0.9)


def test_without_full_updates_in_the_last_rounds_all_others_are_wanted():
    memory = round_of(([4, 0, 0], False))
    assert shortages.class_shortages(pool(1, 1, 1), memory) is None
    assert shortages.class_shortages({}, round_of(([4, 0, 0], True))) is None
