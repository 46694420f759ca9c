"""Whatever happens in whatever order, the round machine's books are right (see `modelled.RandomRun`)."""

import random

import pytest

from tests.aggregator.rounds.modelled import RandomRun


@pytest.mark.parametrize("seed", range(100))
def test_any_order_of_events_leaves_the_books_right(seed):
    RandomRun(random.Random(seed)).run(100)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(1, 11))
def test_half_a_million_steps_leave_the_books_right(tenth):
    for seed in range(500):
        RandomRun(random.Random(1000 * tenth + seed)).run(100)
