"""What a round makes of updates that nothing can be made of."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from device_runtime.models.errors import TensorError
from device_runtime.strategies.interface.aggregator_half import CarriedState, KindResult
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer


@dataclass(frozen=True)
class Refining(FedAvg):
    """Averages, and then does what it was made with to the merged base."""

    name: ClassVar[str] = "refining"
    refine: object = None
    teach: object = None

    def finish(self, state, model):
        return KindResult(mean=state, num_examples=state.most, refine=self.refine, teach=self.teach)


def unable(base):
    raise TensorError("the change holds values that are not finite")


def merged(round_model, value, **does):
    kind = Refining(**does)
    carried = CarriedState(family={"small": {"w": np.ones(2, np.float32)}})
    folding = Folding({kind.name: kind}, round_model, carried)
    name = round_model.manifest.head.bias
    sent = {name: np.full_like(round_model.weights[name], value)}
    for _ in range(2):
        folding.add(Update(kind.name, sent, 10, 0.5), 10.0)
    return folding.merged()


@pytest.mark.parametrize("does", ["refine", "teach"])
def test_a_kind_whose_refinement_fails_on_the_tensors_leaves_the_base_as_it_was_and_says_so(
    round_model, does
):
    """And not for ever a round that cannot be merged, whatever is restarted."""
    after, odd = merged(round_model, 1.0, **{does: unable})
    assert odd == "the change holds values that are not finite: the base stays as it was"
    assert after.base is round_model.weights
    assert after.replayable
    assert after.carried.family["small"]["w"].tolist() == [1, 1]


@pytest.mark.parametrize("does", ["refine", "teach"])
def test_nothing_is_made_of_a_base_that_is_not_finite(round_model, does):
    """Whoever trains on the aggregator need not look."""
    called = []
    after, odd = merged(round_model, np.inf, **{does: lambda base: called.append(base) or {}})
    assert (called, odd) == ([], "the merged model is not finite: the base stays as it was")
    assert after.base is round_model.weights


def test_a_finite_base_is_refined_and_teaches_the_family(round_model):
    name = round_model.manifest.head.bias
    after, odd = merged(
        round_model,
        1.0,
        refine=lambda base: {name: base[name] * 2},
        teach=lambda base: {"small": {"w": base[name]}},
    )
    assert odd == ""
    assert after.base[name].tolist() == after.carried.family["small"]["w"].tolist() == [2.0] * 10


def moved_bias(round_model, kinds, sent, optimizer):
    """How far the classifier's bias goes; `sent`: kind, weight, and change of each of its ten values."""
    name = round_model.manifest.head.bias
    folding = Folding({kind: registry.make(kind) for kind in kinds}, round_model, optimizer=optimizer)
    for kind, weight, change in sent:
        update = {name: (round_model.weights[name] + np.float32(change)).astype(np.float32)}
        folding.add(Update(kind, update, 10, 0.5), weight)
    return (folding.merged()[0].base[name] - round_model.weights[name]).mean()


def test_with_fedexp_updates_that_differ_go_further_than_their_mean(round_model):
    """By half the mean of the squares over the square of the mean, where that is more than 1."""
    sent = [("full", 30.0, 3.0), ("full", 10.0, -1.0)]
    assert moved_bias(round_model, ["full"], sent, ServerOptimizer()) == pytest.approx(2)
    fedexp = ServerOptimizer("fedexp", tau=1e-6)
    assert moved_bias(round_model, ["full"], sent, fedexp) == pytest.approx(2)  # 7 / (2 * 4)
    sent = [("full", 30.0, 3.0), ("full", 10.0, -5.0)]  # 13 / (2 * 1)
    assert moved_bias(round_model, ["full"], sent, fedexp) == pytest.approx(6.5, rel=1e-5)


def test_fedexp_does_not_count_updates_that_are_not_in_the_mean(round_model):
    sent = [("full", 30.0, 3.0), ("full", 10.0, -5.0)]
    alone = moved_bias(round_model, ["full"], sent, ServerOptimizer("fedexp"))
    beside = [*sent, ("few-shot", 10.0, 100.0)]
    assert moved_bias(round_model, ["full", "few-shot"], beside, ServerOptimizer("fedexp")) == alone
