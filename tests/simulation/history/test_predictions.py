"""Accuracy by class, worked by hand."""

import numpy as np
import pytest

from device_runtime.simulation.history.metrics import accuracy_by_class

LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 4.0, 0.0], [6.0, 3.0, 3.0]])
Y = np.array([0, 0, 1])  # nothing of class 2; one of two right in class 0, none in class 1


def test_accuracy_by_class_leaves_out_classes_without_samples():
    assert accuracy_by_class(LOGITS, Y) == pytest.approx([0.5, 0.0, np.nan], nan_ok=True)


def test_a_tie_goes_to_the_lower_class():
    assert accuracy_by_class(np.zeros((1, 2)), np.array([0])) == pytest.approx([1.0, np.nan], nan_ok=True)
