"""The round machine agrees with a plain model after any order of events (see `modelled.RandomRun`)."""

import random

import pytest

from tests.aggregator.machine.modelled import RandomRun


@pytest.mark.parametrize("seed", range(100))
def test_any_order_of_events_agrees_with_the_plain_model(seed):
    RandomRun(random.Random(seed)).run(100)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(1, 11))
def test_half_a_million_steps_agree_with_the_plain_model(tenth):
    for seed in range(500):
        RandomRun(random.Random(1000 * tenth + seed)).run(100)
