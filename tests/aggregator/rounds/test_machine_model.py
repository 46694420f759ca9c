"""Whatever happens in whatever order, the round machine's books are right (see `modelled.RandomRun`)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregator.rounds.modelled import RandomRun


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_events_leaves_the_books_right(drawn):
    RandomRun(drawn).run(60)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_half_a_million_steps_leave_the_books_right(tenth):
    for seed in range(500):
        RandomRun(random.Random(1000 * tenth + seed)).run(100)
