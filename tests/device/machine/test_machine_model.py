"""Whatever happens in whatever order, the device's machine keeps its promises (see `modelled.World`)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.device.machine.modelled import World


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_any_order_of_events_keeps_the_promises(drawn, leaves):
    World(drawn, leaves=leaves).run(60)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_a_million_steps_keep_the_promises(tenth):
    for seed in range(1000):
        World(random.Random(1000 * tenth + seed)).run(100)
