"""Federated evaluation: sums of devices give the figures of all their samples together."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.models.bundles.targets import CROSS_ENTROPY, targets_of
from device_runtime.models.training.evaluation import evaluate_outputs
from device_runtime.models.training.metrics import FurtherMetrics
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.kinds.evaluation import FederatedEvaluation, figures, measure
from device_runtime.strategies.statistics import held_out

RNG = np.random.default_rng(5)
PRICES = targets_of("mse", ("price", "area"), mean=(10.0, 2.0), std=(4.0, 0.5))
FLAGS = targets_of("bce", ("a", "b", "c"))


def pooled(target, outputs, y, parts=3):
    """The figures of devices that have a part of the samples each."""
    x, total, losses = np.zeros((len(y), 1), np.float32), 0, 0.0
    for rows in np.array_split(np.arange(len(y)), parts):
        total = total + measure(target, outputs[rows], LocalData(x[rows], y[rows]))
        losses += len(rows) * evaluate_outputs(target, outputs[rows], x[rows], y[rows]).eval_loss
    memory = {"rows": total, "totals": np.array([len(y), losses]), "round": np.array(4)}
    return figures(target, memory, 4), evaluate_outputs(target, outputs, x, y)


def test_sums_of_classes_give_accuracy_loss_and_macro_metrics_of_all_samples():
    y, outputs = RNG.integers(0, 5, 60), RNG.normal(size=(60, 6)).astype(np.float32)
    together, expected = pooled(CROSS_ENTROPY, outputs, y)
    assert together.eval_acc == pytest.approx(expected.eval_acc)
    assert together.eval_loss == pytest.approx(expected.eval_loss, rel=1e-5)
    assert together.num_examples == 60
    further = FurtherMetrics(["f1-macro", "recall-macro"], CROSS_ENTROPY)
    assert together.metrics == pytest.approx(further.of_outputs(outputs, None, y))


def test_sums_of_values_give_r2_and_errors_in_original_units():
    y, outputs = (RNG.normal(size=(40, 2)).astype(np.float32) for _ in range(2))
    together, expected = pooled(PRICES, outputs, y)
    assert together.metric == "R2"
    assert together.eval_acc == pytest.approx(expected.eval_acc, rel=1e-4)
    further = FurtherMetrics(["mae", "rmse"], PRICES)
    assert together.metrics == pytest.approx(further.of_outputs(outputs, None, y), rel=1e-4)


def test_sums_of_flags_give_label_accuracy():
    y = (RNG.random((40, 3)) < 0.4).astype(np.float32)
    outputs = RNG.normal(size=(40, 3)).astype(np.float32)
    together, expected = pooled(FLAGS, outputs, y)
    assert together.eval_acc == pytest.approx(expected.eval_acc)
    f1 = FurtherMetrics(["f1-macro"], FLAGS).of_outputs(outputs, None, y)
    assert together.metrics == pytest.approx(f1)


def test_a_device_tests_on_what_it_would_hold_out_of_training(model, digits, run):
    kind = FederatedEvaluation(hold_out=0.25)
    test, _ = held_out.split_held_out(digits, 0.25, run().device)
    update = kind.train(model, digits, run())
    assert update.num_examples == len(test) == update.tensors["totals"][0]
    right = (model.logits(test.x).argmax(axis=1) == test.y).sum()
    assert update.tensors["rows"][:, 2].sum() == right
    assert FederatedEvaluation(hold_out=1.0).train(model, digits, run()).num_examples == len(digits)


def test_the_model_stays_and_the_sums_of_a_round_are_its_own(model, digits, run):
    kind = FederatedEvaluation()
    round_model = RoundModel(model.manifest, model.weights, 3, 7)
    update = kind.train(model, digits, run())
    state = kind.fold(kind.fold(kind.start(round_model), update, 1.0), update, 5.0)
    result = kind.finish(state, round_model)
    assert (result.mean, result.assigned, result.served, result.steps) == (None, None, None, ())
    target = model.manifest.target
    assert figures(target, result.memory, 3).num_examples == 2 * update.num_examples
    assert figures(target, result.memory, 4) is None
    assert figures(target, {}, 3) is None


def test_wrong_sums_are_refused(model, digits, run):
    kind = FederatedEvaluation()
    update = kind.train(model, digits, run())
    assert kind.rejection_reason(update.tensors, update.num_examples) == ""
    reason = kind.rejection_reason(update.tensors, 99)
    assert reason == f"its sums are of {update.num_examples} samples, num_examples is 99"
    broken = replace(update, tensors={**update.tensors, "rows": update.tensors["rows"] * np.nan})
    assert kind.rejection_reason(broken.tensors, update.num_examples) == "its sums are not finite"
    for column, change in ((0, 1), (1, -1), (2, update.num_examples), (2, -update.num_examples), (4, 1)):
        rows = update.tensors["rows"].copy()
        rows[3, column] += change
        reason = kind.rejection_reason({**update.tensors, "rows": rows}, update.num_examples)
        assert reason == f"no {update.num_examples} samples have its sums"
