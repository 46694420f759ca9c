"""Named metrics against scikit-learn's, and functions of the user's own."""

import numpy as np
import pytest

from device_runtime.models.bundles.targets import CROSS_ENTROPY, targets_of
from device_runtime.models.training.evaluation import evaluate_outputs
from device_runtime.models.training.metrics import (
    NAMED,
    FurtherMetrics,
    MetricError,
    higher_is_better,
    metric_source,
)

RNG = np.random.default_rng(3)
Y = RNG.integers(0, 6, 200)
LOGITS = (RNG.normal(size=(200, 7)) + np.eye(7)[Y]).astype(np.float32)  # of class 6 there are no samples
X = np.zeros((200, 1), np.float32)
PRICES = targets_of("mse", ("price", "area"), mean=(10.0, 2.0), std=(4.0, 0.5))
FLAGS = targets_of("bce", ("a", "b", "c"))


def of(target, outputs, y, *names):
    return FurtherMetrics(names, target).of_outputs(outputs, X, y)


def test_metrics_of_classes_are_those_of_scikit_learn():
    learn = pytest.importorskip("sklearn.metrics")
    figures = of(CROSS_ENTROPY, LOGITS, Y, "accuracy", "top-3", "f1-macro", "precision-macro", "recall-macro")
    predicted = LOGITS.argmax(axis=1)
    assert figures["accuracy"] == pytest.approx(learn.accuracy_score(Y, predicted))
    top = learn.top_k_accuracy_score(Y, LOGITS, k=3, labels=range(7))
    assert figures["top-3"] == pytest.approx(top)
    assert figures["f1-macro"] == pytest.approx(learn.f1_score(Y, predicted, average="macro"))
    precision = learn.precision_score(Y, predicted, average="macro", zero_division=0)
    assert figures["precision-macro"] == pytest.approx(precision)
    recall = learn.recall_score(Y, predicted, average="macro", zero_division=0)
    assert figures["recall-macro"] == pytest.approx(recall)
    matrix = of(CROSS_ENTROPY, LOGITS, Y, "confusion-matrix")["confusion-matrix"]
    assert matrix.tolist() == learn.confusion_matrix(Y, predicted, labels=range(7)).tolist()


def test_auroc_of_classes_is_the_mean_of_one_against_the_rest():
    learn = pytest.importorskip("sklearn.metrics")
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    areas = [learn.roc_auc_score(label == Y, chances[:, label]) for label in range(6)]
    assert of(CROSS_ENTROPY, LOGITS, Y, "auroc")["auroc"] == pytest.approx(np.mean(areas), abs=1e-6)


def test_metrics_of_values_are_in_original_units():
    y = PRICES.prepare(np.array([[10.0, 2.0], [14.0, 2.5], [6.0, 1.5]]))
    outputs = y + np.float32([[0.25, 0], [0, 0.5], [-0.5, 0]])  # 1 and -2 of price, 0.25 of area
    figures = FurtherMetrics(["mae", "rmse", "r2"], PRICES).of_outputs(outputs, X[:3], y)
    assert figures["mae"] == pytest.approx((1 + 2 + 0.25) / 6)
    assert figures["rmse"] == pytest.approx(((1 + 4 + 0.0625) / 6) ** 0.5)
    assert figures["r2"] == pytest.approx(evaluate_outputs(PRICES, outputs, X[:3], y).eval_acc)


def test_metrics_of_flags_are_means_over_flags():
    learn = pytest.importorskip("sklearn.metrics")
    y, outputs = (RNG.random((50, 3)) < 0.4).astype(np.float32), RNG.normal(size=(50, 4)).astype(np.float32)
    figures = FurtherMetrics(["f1-macro", "auroc", "exact-match"], FLAGS).of_outputs(outputs, X[:50], y)
    assert figures["f1-macro"] == pytest.approx(learn.f1_score(y, outputs[:, :3] > 0, average="macro"))
    assert figures["auroc"] == pytest.approx(learn.roc_auc_score(y, outputs[:, :3], average="macro"))
    assert figures["exact-match"] == learn.accuracy_score(y, outputs[:, :3] > 0)


def test_a_metric_that_is_unknown_or_does_not_fit_says_which_do():
    with pytest.raises(MetricError, match=r"no metric 'f1': expected one of accuracy, top-5, .*FILE"):
        FurtherMetrics(["f1"], CROSS_ENTROPY)
    with pytest.raises(MetricError, match=r"f1-macro is of classes and flags, and the loss is mse of price"):
        FurtherMetrics(["f1-macro"], PRICES)
    with pytest.raises(MetricError, match="no metric 'top-0'"):
        FurtherMetrics(["top-0"], CROSS_ENTROPY)
    with pytest.raises(MetricError, match=r"metrics has 3, expected names"):
        metric_source(3)


def test_a_function_gets_predictions_and_targets_in_original_units():
    calls = []

    def largest(outputs, y):
        calls.append((outputs, y))
        return np.abs(outputs - y).max()

    y = PRICES.prepare(np.array([[10.0, 2.0], [14.0, 2.5]]))
    with metric_source(largest) as source:
        figures = FurtherMetrics([source], PRICES).of_outputs(y + np.float32(0.5), X[:2], y)
    assert figures == {"largest": pytest.approx(2.0)}  # half of price's deviation of 4
    assert calls[0][1].tolist() == [[10.0, 2.0], [14.0, 2.5]]


def test_a_function_may_evaluate_in_its_own_way():
    class Model:
        def logits(self, x):
            return np.hstack([x, 2 * x])

    def halves(predict, x, y):
        return {"first": predict(x[:1]).sum(), "targets": len(y)}

    with metric_source(halves) as source:
        metrics = FurtherMetrics([source], CROSS_ENTROPY)
        assert metrics.of_outputs(LOGITS, X, Y) == {}
        assert metrics.of(Model(), np.ones((4, 1), np.float32), Y[:4]) == {"first": 3.0, "targets": 4.0}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda outputs, y: "good", "gives 'good', expected a number, or numbers by name"),
        (
            lambda outputs, y: 1 / 0,
            r"fails: ZeroDivisionError: .* \(test_metrics.py, line \d+\)",
        ),
        (lambda outputs: 1, r"needs 1 arguments, expected \(outputs, y\), or \(predict, x, y\)"),
    ],
)
def test_a_function_that_is_wrong_is_named(function, message):
    with metric_source(function) as source, pytest.raises(MetricError, match=message):
        FurtherMetrics([source], CROSS_ENTROPY).of_outputs(LOGITS, X, Y)


def test_errors_are_the_better_the_lower():
    assert {name for name in NAMED if not higher_is_better(name)} == {"mae", "rmse"}
    assert higher_is_better("top-3") and higher_is_better("mine") is None
