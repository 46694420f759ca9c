"""Scalars along directions of several rounds, some of them late, under each rule."""

import numpy as np
import pytest

from device_runtime.strategies.interface.device_half import Late, Update
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.robust import RULES, Robust, Screen
from device_runtime.strategies.robust.lengths import BY_LENGTH


def merged(round_model, kind, rule, sent, tmp_path, **numbers):
    """`sent`: (device, scalars, rounds ago); the scalars of the steps, the earliest first, and the note."""
    with Screen(Folding({kind.name: kind}, round_model), Robust(rule, **numbers), tmp_path) as screen:
        for device, g, ago in sent:
            late = Late(round_model.round - ago, 50 + ago, 1.0) if ago else None
            content = {"g": np.array(g, np.float32)}
            screen.add(Update(kind.name, content, 10, 0.5, late=late), 10.0, device)
        after, note = screen.merged()
    return [step.scalars for step in after.steps], note


@pytest.mark.parametrize("rule", sorted(BY_LENGTH))
def test_scalars_of_own_directions_are_held_to_the_lengths_of_all(round_model, tmp_path, rule):
    """Four devices, of a round each: their scalars are 1, -2, 3, and a lie."""
    sent = [("a", [1.0], 3), ("b", [-2.0], 2), ("c", [3.0], 1), ("d", [-1e8], 0)]
    scalars, _ = merged(round_model, ZerothOrder(num_z=1), rule, sent, tmp_path)
    # the median of 1, 2, 3 and 1e8 is 2.5
    bound = 2.5 * (1.4826 if rule == "value-clip" else 1.0)
    assert [scalar for (scalar,) in scalars] == pytest.approx([1.0, -2.0, min(3.0, bound), -bound])


def test_a_stated_bound_holds_scalars_of_own_directions_too(round_model, tmp_path):
    sent = [("a", [0.5], 0), ("b", [-1e8], 1)]
    scalars, _ = merged(round_model, ZerothOrder(num_z=1), "value-clip", sent, tmp_path, clip=2.0)
    assert scalars == [(-2.0,), (0.5,)]


@pytest.mark.parametrize("rule", sorted(set(RULES) - BY_LENGTH - {"none"}))
def test_devices_of_a_round_are_compared_with_each_other_and_few_late_ones_are_left_out(
    round_model, tmp_path, rule
):
    honest = [(f"pi-{i}", (1.0, 2.0), 0) for i in range(4)]
    few = [(f"late-{i}", (9.0, 9.0), 1) for i in range(2)]
    sent = [*honest, ("liar", (-1e8, 1e8), 0), *few]
    scalars, note = merged(round_model, ZerothOrder(), rule, sent, tmp_path)
    assert scalars == [pytest.approx((1.0, 2.0))]
    of = f"of round {round_model.round - 1}"
    assert f"2 zeroth-order {of} too few for {rule} to detect false updates, rejected" in note
