"""What holds for every kind of update, whatever it does."""

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload

SHORT = {
    **{name: {"epochs": 2} for name in ("full", "full+few-shot", "width-slice", "entropy-subset")},
    "peft": {"tunable": "head", "epochs": 2},
    "local-zeroth-order": {"steps": 2},
    "evaluation": {"hold_out": 1.0},
}
ELSEWHERE = {"sparse", "representatives", "attention-transfer", "prototypes"}
"""Kinds for which the shipped bundle has not what they need; their own tests make one that does."""
HERE = [name for name in registry.KINDS if name not in ELSEWHERE]


@pytest.fixture(params=HERE)
def strategy(request):
    return registry.make(request.param, SHORT.get(request.param))


def test_the_same_seed_gives_the_same_contribution_bit_for_bit(strategy, bundle, digits, run):
    """Also on another engine object, as after a restart of the process."""
    first, second = (strategy.train(OnnxModel(bundle), digits, run()) for _ in range(2))
    assert tensors.encode(first.tensors) == tensors.encode(second.tensors)
    assert (first.num_examples, repr(first.train_loss)) == (second.num_examples, repr(second.train_loss))


def test_another_seed_changes_what_is_drawn_at_random(strategy, model, digits, run):
    first, second = (tensors.encode(strategy.train(model, digits, run(seed=s)).tensors) for s in (1, 2))
    assert (first == second) == (strategy.name in ("class-means", "evaluation"))  # which draw nothing


def test_training_leaves_the_distributed_model_and_the_data_as_they_were(strategy, model, digits, run):
    weights, x = tensors.encode(model.weights), digits.x.copy()
    strategy.train(model, digits, run())
    assert tensors.encode(model.weights) == weights
    assert np.array_equal(digits.x, x)


def test_a_contribution_is_what_the_aggregator_expects(strategy, model, digits, run):
    sent = strategy.train(model, digits, run())
    tensors.check(sent.tensors, strategy.expected(model.manifest))
    assert strategy.rejection_reason(sent.tensors, sent.num_examples) == ""


def test_the_predicted_upload_is_within_a_tenth_of_what_is_sent(strategy, model, digits, run):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    cost = strategy.cost(workload(model.manifest, digits.class_counts(10)), profile)
    body = tensors.encode(strategy.train(model, digits, run()).tensors)
    assert cost.bytes_up == pytest.approx(len(body) + 120, rel=0.1)


FEW = {
    "one sample": slice(0, 1),
    "one class": np.array([1, 11, 21]),
    "two classes": np.array([0, 1, 11]),
}


@pytest.mark.parametrize("few", FEW)
def test_few_samples_and_absent_classes_are_enough_or_said_not_to_be(strategy, model, digits, run, few):
    data = type(digits)(digits.x[FEW[few]], digits.y[FEW[few]])
    load = workload(model.manifest, data.class_counts(10))
    if strategy.infeasible_reason(load):
        assert (strategy.name, few) in {
            ("few-shot", "one sample"),
            ("few-shot", "one class"),
            ("class-means", "one sample"),  # which its features would tell
        }
        return
    sent = strategy.train(model, data, run())
    tensors.check(sent.tensors, strategy.expected(model.manifest))  # which looks for what is not finite too
    assert strategy.rejection_reason(sent.tensors, sent.num_examples) == ""


@pytest.mark.parametrize("name", [name for name in HERE if hasattr(registry.KINDS[name], "batch")])
def test_batches_of_one_are_enough(name, model, digits, run):
    kind = registry.make(name, {**SHORT.get(name, {}), "batch": 1})
    sent = kind.train(model, type(digits)(digits.x[:12], digits.y[:12]), run())
    tensors.check(sent.tensors, kind.expected(model.manifest))
