import numpy as np
import pytest

from device_runtime.device.personal.after_round import OwnHead, personal_evaluation
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.strategies.interface.device_half import LocalData

OWN = OwnHead(3, "a", lambda: 0.0)


@pytest.fixture
def model(bundle):
    return OnnxModel(bundle)


@pytest.fixture
def local(bundle, digits):
    """Samples begin..end with their labels, as the task has them or as `relabelled` says."""

    def part(begin, end, relabelled=lambda y: y):
        x, y = digits
        return LocalData(bundle.manifest.input.prepare(x[begin:end]), relabelled(y[begin:end]))

    return part


def test_the_figures_are_those_of_the_model_on_what_was_held_out(model, local):
    holdout = local(100, 150)
    judgement = personal_evaluation(model, local(0, 100), holdout, None)
    assert judgement.served == accuracy_and_loss(model.logits(holdout.x), holdout.y)
    assert (judgement.own_head, judgement.head) == (None, None)


def test_a_head_is_used_where_it_is_better_on_what_was_held_out(model, local):
    """The task has other names for this device's classes: digits are one off."""
    off = lambda y: (y + 1) % 10  # noqa: E731
    judgement = personal_evaluation(model, local(0, 300, off), local(300, 400, off), OWN)
    assert judgement.own_head.eval_acc > 0.5 > judgement.served.eval_acc
    assert set(judgement.head) == {model.manifest.head.weight, model.manifest.head.bias}


def test_a_head_that_is_worse_is_not_used(model, local):
    model.load(personal_evaluation(model, local(0, 300), local(300, 400), OWN).head)
    turned = np.roll(np.arange(10), 3)
    judgement = personal_evaluation(model, local(0, 300, lambda y: turned[y]), local(300, 400), OWN)
    assert judgement.own_head.eval_acc < 0.5 < judgement.served.eval_acc
    assert judgement.head is None


def test_the_same_round_gives_the_same_head(model, local):
    first, other = (personal_evaluation(model, local(0, 200), local(200, 260), OWN) for _ in range(2))
    assert first.own_head == other.own_head


def test_of_one_class_no_head_is_trained(model, local):
    judgement = personal_evaluation(model, local(0, 100, np.zeros_like), local(100, 150), OWN)
    assert judgement.own_head is None
