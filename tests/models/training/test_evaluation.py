from dataclasses import dataclass, field

import numpy as np
import pytest

from device_runtime.models.bundles.targets import TargetSpec, targets_of
from device_runtime.models.training.evaluation import (
    anomaly_threshold,
    auroc,
    evaluate,
    predicted_values,
    sample_losses,
    sigmoid,
)


@dataclass
class FakeManifest:
    target: TargetSpec
    sets: dict[str, dict] = field(default_factory=lambda: {"all": {}})


class FakeModel:
    """Gives the outputs that it was made with, the rows of x being their numbers."""

    def __init__(self, target, outputs):
        self.manifest, self._outputs = FakeManifest(target), np.array(outputs, np.float32)

    def logits(self, x):
        return self._outputs[: len(x)]


X = np.zeros((4, 1), np.float32)


def test_losses_of_samples_are_means_over_their_columns():
    outputs, targets = np.array([[0.0, 3.0]], np.float32), np.array([[0.5, 1.0]], np.float32)
    assert sample_losses(targets_of("mse", ("a", "b")), outputs, targets) == pytest.approx((0.25 + 4) / 2)
    assert sample_losses(targets_of("mae", ("a", "b")), outputs, targets) == pytest.approx((0.5 + 2) / 2)
    bent = (0.5 * 0.5**2 + 1.0 * (2 - 0.5)) / 2  # delta is 1
    assert sample_losses(targets_of("huber", ("a", "b")), outputs, targets) == pytest.approx(bent)


def test_binary_cross_entropy_of_large_logits_is_finite():
    flags = targets_of("bce", ("a",))
    losses = sample_losses(flags, np.array([[100.0], [-100.0]], np.float32), np.array([[0.0], [0.0]]))
    assert losses.tolist() == pytest.approx([100.0, 0.0])
    assert sigmoid(np.array([[0.0, -1000.0]])).tolist() == [[0.5, 0.0]]


def test_values_are_evaluated_in_original_units():
    target = targets_of("mse", ("price",), mean=(10.0,), std=(2.0,))
    model = FakeModel(target, [[0.0], [1.0], [2.0], [3.0]])  # 10, 12, 14, 16
    y = target.prepare(np.array([10.0, 12.0, 14.0, 20.0]))
    evaluation = evaluate(model, X, y)
    assert (evaluation.metric, evaluation.num_examples) == ("R2", 4)
    assert evaluation.eval_loss == pytest.approx((4 / 2) ** 2 / 4)  # standardised
    assert evaluation.metrics == pytest.approx({"RMSE": 2.0, "MAE": 1.0})  # an error of 4 in one of four
    assert evaluation.eval_acc == pytest.approx(1 - 16 / 56)  # squares about the mean, 14: 16 + 4 + 0 + 36


def test_several_columns_have_an_error_each_and_their_mean_r2():
    target = targets_of("mae", ("a", "b"))
    model = FakeModel(target, [[0, 0], [2, 0], [0, 0], [2, 0]])
    evaluation = evaluate(model, X, np.array([[0, 1], [2, 1], [0, 1], [2, 1]], np.float32))
    assert evaluation.metrics == pytest.approx({"RMSE a": 0, "RMSE b": 1, "MAE a": 0, "MAE b": 1})
    assert evaluation.eval_acc == pytest.approx((1 + 0) / 2)  # b is constant: it counts as 0


def test_flags_have_label_accuracy_exact_match_and_f1():
    model = FakeModel(targets_of("bce", ("a", "b")), [[1, -1], [1, 1], [-1, -1], [-1, 1]])
    evaluation = evaluate(model, X, np.array([[1, 0], [1, 0], [0, 0], [1, 1]], np.float32))
    assert evaluation.metric == "label accuracy"
    assert evaluation.eval_acc == pytest.approx(6 / 8)
    assert evaluation.metrics == pytest.approx({"exact match": 0.5, "F1": 2 * 3 / (4 + 4)})


def test_a_reconstruction_is_judged_on_normal_samples_and_anomalies_by_auroc():
    target = targets_of("mse", ("normal", "anomaly"), "input", quantile=0.5)
    x = np.array([[0.0], [1.0], [2.0], [9.0]], np.float32)
    model = FakeModel(target, [[0.0], [1.5], [3.0], [4.0]])  # errors 0, 0.25, 1 and 25
    evaluation = evaluate(model, x, np.array([0, 0, 0, 1]))
    assert evaluation.eval_loss == pytest.approx(1.25 / 3)
    assert evaluation.metrics == pytest.approx({"threshold": 0.25, "AUROC": 1.0})
    assert evaluation.eval_acc == pytest.approx(1 - 1.25 / 2)  # squares about the mean, 1
    assert anomaly_threshold(model, (x[:3], np.zeros(3, int))) == pytest.approx(0.25)
    assert "AUROC" not in evaluate(model, x, np.zeros(4, int)).metrics


def test_auroc_counts_ties_as_half():
    scores, positive = np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])
    assert auroc(scores, positive) == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert np.isnan(auroc(scores, np.ones(4, bool)))


def test_no_samples_have_no_figures():
    evaluation = evaluate(FakeModel(targets_of("mse", ("a",)), [[0]]), X[:0], np.zeros((0, 1), np.float32))
    assert (np.isnan(evaluation.eval_loss), evaluation.num_examples) == (True, 0)


def test_more_outputs_than_columns_are_no_predictions():
    pinball = TargetSpec("pinball", "values", ("price",), (10.0,), (2.0,), own=True)
    assert predicted_values(pinball, np.array([[1.0, 5.0, 9.0]], np.float32)).tolist() == [[12.0]]
