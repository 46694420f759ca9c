"""What holds for every kind of update, whatever it does."""

import numpy as np
import pytest

from models import tensors
from models.onnx_engine import OnnxModel
from profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from strategies import registry
from strategies.workload import workload

SHORT = {"full": {"epochs": 2}, "entropy-subset": {"epochs": 2}}


@pytest.fixture(params=registry.KINDS)
def strategy(request):
    return registry.make(request.param, SHORT.get(request.param))


def test_the_same_seed_gives_the_same_contribution_bit_for_bit(strategy, bundle, digits, run):
    """Also on another engine object, as after a restart of the process."""
    first, second = (strategy.train(OnnxModel(bundle), digits, run()) for _ in range(2))
    assert tensors.encode(first.tensors) == tensors.encode(second.tensors)
    assert (first.num_examples, repr(first.train_loss)) == (second.num_examples, repr(second.train_loss))


def test_another_seed_changes_what_is_drawn_at_random(strategy, model, digits, run):
    one, two = (tensors.encode(strategy.train(model, digits, run(seed=s)).tensors) for s in (1, 2))
    assert (one == two) == (strategy.name == "class-means")  # which draws nothing


def test_training_leaves_the_distributed_model_and_the_data_as_they_were(strategy, model, digits, run):
    weights, x = tensors.encode(model.weights), digits.x.copy()
    strategy.train(model, digits, run())
    assert tensors.encode(model.weights) == weights
    assert np.array_equal(digits.x, x)


def test_a_contribution_is_what_the_aggregator_expects(strategy, model, digits, run):
    sent = strategy.train(model, digits, run())
    tensors.check(sent.tensors, strategy.expected(model.manifest))
    assert strategy.doubt(sent.tensors, sent.num_examples) == ""


def test_the_predicted_upload_is_within_a_tenth_of_what_is_sent(strategy, model, digits, run):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    cost = strategy.cost(workload(model.manifest, digits.class_counts(10)), profile)
    body = tensors.encode(strategy.train(model, digits, run()).tensors)
    assert cost.bytes_up == pytest.approx(len(body) + 120, rel=0.1)
