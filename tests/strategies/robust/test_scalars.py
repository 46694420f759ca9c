"""Scalars of groups that measure along directions of their own, under each rule."""

import numpy as np
import pytest

from strategies.folding import Folding
from strategies.full import Full
from strategies.kind import Contribution
from strategies.mean_scalars import group_of
from strategies.robust import RULES, Robust, Screen
from strategies.robust.scalars import BY_LENGTH, why_not
from strategies.zeroth_order import ZerothOrder

HOLDING = [rule for rule in RULES if rule != "none"]


def in_group(group, groups, count):
    """Names of so many devices that measure along this group's directions."""
    names = (f"pi-{i}" for i in range(10_000))
    return [name for name in names if group_of(name, groups) == group][:count]


def merged(round_model, kind, rule, sent, tmp_path, **numbers):
    """`sent`: (device, scalars); the scalars of the step, and the note."""
    with Screen(Folding({kind.name: kind}, round_model), Robust(rule, **numbers), tmp_path) as screen:
        for device, g in sent:
            content = {"g": np.array(g, np.float32)}
            screen.add(Contribution(kind.name, content, 10, 0.5), 10.0, device)
        after, note = screen.merged()
    return after.steps[0].scalars, note


@pytest.mark.parametrize("rule", sorted(BY_LENGTH))
def test_scalars_of_own_directions_are_held_to_the_lengths_of_all(round_model, tmp_path, rule):
    """Four devices, four groups of one: their scalars are 1, -2, 3, and a lie."""
    kind = ZerothOrder(num_z=1, groups=4)
    devices = [in_group(group, 4, 1)[0] for group in range(4)]
    sent = list(zip(devices, ([1.0], [-2.0], [3.0], [-1e8]), strict=True))
    made, _ = merged(round_model, kind, rule, sent, tmp_path)
    # the median of 1, 2, 3 and 1e8 is 2.5; a step is the mean of four, each by a quarter of the weight
    bound = 2.5 * (1.4826 if rule == "value-clip" else 1.0)
    assert made == pytest.approx((1.0, -2.0, min(3.0, bound), -bound))


def test_a_stated_bound_holds_scalars_of_own_directions_too(round_model, tmp_path):
    kind = ZerothOrder(num_z=1, groups=2)
    sent = [(in_group(0, 2, 1)[0], [0.5]), (in_group(1, 2, 1)[0], [-1e8])]
    made, _ = merged(round_model, kind, "value-clip", sent, tmp_path, clip=2.0)
    assert made == pytest.approx((0.5, -2.0))


@pytest.mark.parametrize("rule", ["median", "weighted-median", "trimmed-mean", "krum", "multi-krum"])
def test_devices_of_a_group_are_compared_with_each_other_and_a_small_group_is_left_out(
    round_model, tmp_path, rule
):
    kind = ZerothOrder(num_z=2, groups=2)
    honest = [(name, (1.0, 2.0)) for name in in_group(0, 2, 4)]
    small = [(name, (9.0, 9.0)) for name in in_group(1, 2, 2)]
    liar = (in_group(0, 2, 5)[-1], (-1e8, 1e8))
    made, note = merged(round_model, kind, rule, [*honest, liar, *small], tmp_path)
    assert made == pytest.approx((1.0, 2.0))
    assert f"2 zeroth-order too few for {rule} to tell who lies, and left out" in note


def test_a_rule_that_compares_devices_needs_three_of_each_group():
    kind = ZerothOrder(groups=4)
    why = why_not(Robust("median"), kind, 11)
    assert why.startswith("median compares devices along the same directions, and zeroth-order has 4 groups")
    assert "min_contributions of 12 or more, which is 11; norm-clip and value-clip need none" in why
    assert why_not(Robust("median"), kind, 12) == ""


@pytest.mark.parametrize("rule", ["none", *sorted(BY_LENGTH)])
def test_rules_that_go_by_length_need_nobody_along_the_same_directions(rule):
    assert why_not(Robust(rule), ZerothOrder(groups=64), 1) == ""


@pytest.mark.parametrize("rule", HOLDING)
def test_every_rule_makes_sense_where_all_measure_along_the_same_directions(rule):
    assert why_not(Robust(rule), ZerothOrder(), 1) == why_not(Robust(rule), Full(), 1) == ""
