"""A round that brings few samples moves the base by less."""

import numpy as np
import pytest

from device_runtime.strategies.interface.aggregator_half import (
    CarriedState,
    KindResult,
    RoundModel,
    TensorMean,
)
from device_runtime.strategies.merging import merge as few_samples
from device_runtime.strategies.merging.merge import merge

BASE = {"w": np.full(3, 1.0, np.float32)}


def joined(weight, value=3.0, name="w"):
    return TensorMean().add({name: np.full(3, value, np.float32)}, weight)


def after(*weights):
    """The memory after rounds of these weights."""
    memory = {}
    for weight in weights:
        _, memory = few_samples.damped_step(BASE, joined(weight), memory)
    return memory


def test_the_first_round_and_those_of_as_many_samples_go_all_the_way():
    for memory in ({}, after(100), after(100, 100)):
        means, _ = few_samples.damped_step(BASE, joined(100), memory)
        np.testing.assert_array_equal(means["w"], np.full(3, 3.0, np.float32))
        assert means["w"].dtype == np.float32


def test_a_round_of_few_samples_goes_the_share_of_the_way_that_it_has_of_the_usual_ones():
    """100, 100 and 40 are 80 in the mean: half of the way."""
    means, memory = few_samples.damped_step(BASE, joined(40), after(100, 100))
    np.testing.assert_allclose(means["w"], 1.0 + 0.5 * 2.0)
    assert memory["w"].tolist() == [80.0, 3.0]


def test_a_round_of_many_samples_goes_no_further_than_the_mean():
    means, _ = few_samples.damped_step(BASE, joined(900), after(100))
    np.testing.assert_array_equal(means["w"], np.full(3, 3.0, np.float32))


def test_what_is_usual_follows_a_fleet_that_shrinks():
    memory = after(*[1000] * 50, *[10] * 60)
    assert memory["w"][0] == pytest.approx(10, rel=0.2)


def test_tensors_have_each_their_own_usual_weight_and_one_that_was_not_trained_keeps_it():
    memory = after(100, 100)
    means, memory = few_samples.damped_step(BASE, joined(5, name="v"), memory)
    assert means.keys() == {"v"}
    assert (memory["w"].tolist(), memory["v"].tolist()) == ([100.0, 2.0], [5.0, 1.0])


def test_of_a_tensor_of_which_parts_came_the_best_known_element_counts():
    mean = joined(10).add_leading({"w": np.zeros(2, np.float32)}, 30.0, BASE)
    assert mean.behind("w") == mean.most == 40.0


@pytest.mark.parametrize(("mixed", "way"), [(True, 0.5), (False, 1.0)])
def test_mixed_rounds_alone_are_merged_so_and_remember_it(mixed, way, bundle):
    model = RoundModel(bundle.manifest, BASE, 3, 7)
    carried = CarriedState(memory={few_samples.DAMPING_MEMORY: after(100, 100)})
    effects = {"full": KindResult(mean=joined(40), num_examples=40)}
    merged = merge(model, effects, carried=carried, mixed=mixed)
    np.testing.assert_allclose(merged.base["w"], 1.0 + 2.0 * way)
    assert merged.carried.memory[few_samples.DAMPING_MEMORY]["w"].tolist() == (
        [80.0, 3.0] if mixed else [100.0, 2.0]
    )
