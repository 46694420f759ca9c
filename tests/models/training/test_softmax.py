import math

import numpy as np

from device_runtime.models.training.heads import accuracy_and_loss, cross_entropy, entropy, log_softmax


def test_uniform_logits_have_the_entropy_and_loss_of_a_fair_die():
    logits = np.full((2, 6), 3, np.float32)
    np.testing.assert_allclose(entropy(logits), math.log(6), rtol=1e-6)
    np.testing.assert_allclose(cross_entropy(logits, np.array([0, 5])), math.log(6), rtol=1e-6)


def test_huge_logits_do_not_overflow():
    logits = np.array([[1e4, 0, 0]], np.float32)
    np.testing.assert_array_equal(log_softmax(logits), [[0, -1e4, -1e4]])
    assert entropy(logits)[0] == 0


def test_accuracy_and_loss_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    result = accuracy_and_loss(logits, np.array([0, 1]))
    assert result.eval_acc == 0.5
    assert result.num_examples == 2
    assert math.isclose(result.eval_loss, -(math.log(0.5) + math.log(0.1)) / 2, rel_tol=1e-6)


def test_no_samples_give_no_numbers_rather_than_an_error():
    result = accuracy_and_loss(np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
    assert math.isnan(result.eval_loss)
    assert result.num_examples == 0
