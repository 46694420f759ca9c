"""What a round makes of updates that nothing can be made of."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from device_runtime.models.errors import TensorError
from device_runtime.strategies.interface.aggregator_half import CarriedState, KindResult
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.merging.folding import Folding


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
