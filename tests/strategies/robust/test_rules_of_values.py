"""The weighted median and the clipping of values, worked by hand."""

import numpy as np
import pytest

from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.robust import Robust, Screen
from device_runtime.strategies.robust.rules import bounds, median, weighted_median

NUM_Z = 2


def column(*values):
    return np.array(values, np.float32)[:, None]


def scalars(round_model, rule, sent, tmp_path, **numbers):
    """The mean scalars of a round; `sent`: (scalars, samples) of each device; and the note."""
    kind = registry.make("zeroth-order", {"num_z": NUM_Z})
    with Screen(Folding({kind.name: kind}, round_model), Robust(rule, **numbers), tmp_path) as screen:
        for i, (g, samples) in enumerate(sent):
            update = Update(kind.name, {"g": np.array(g, np.float32)}, samples, 0.5)
            screen.add(update, float(samples), f"pi-{i}")
        after, note = screen.merged()
    return after.steps[0].scalars, note


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ((1, 2, 3), (1, 1, 1), 2),
        ((3, 1, 2), (5, 1, 1), 3),
        ((1, 2, 3, 4), (1, 1, 1, 1), 2.5),  # half of the weight is below, half above
        ((1, 2, 9), (1, 1, 2), 5.5),
        ((7, 7, 1), (0.1, 0.2, 0.2), 7),
        ((4,), (3,), 4),
    ],
)
def test_half_of_the_weight_is_at_or_below_a_weighted_median(values, weights, expected):
    assert weighted_median(column(*values), weights).tolist() == [expected]


def test_with_equal_weights_the_weighted_median_is_the_median():
    for devices in (3, 4, 7, 10):
        values = np.random.default_rng(devices).normal(size=(devices, 50)).astype(np.float32)
        np.testing.assert_array_equal(weighted_median(values, [0.1] * devices), median(values))


def test_values_are_held_within_so_many_spreads_of_their_median():
    about = bounds(column(1, 2, 3, 4, 100), 2.0)
    reach = 2 * 1.4826 * 1  # |v - 3| are 2, 1, 0, 1, 97
    assert (about.middle.tolist(), about.reach.tolist()) == ([3.0], pytest.approx([reach]))
    assert about.hold(np.array([100], np.float32)).tolist() == pytest.approx([3 + reach])
    assert about.hold(np.array([4], np.float32)).tolist() == [4]


def test_lies_that_are_further_apart_than_a_float32_can_be_bound_nothing_and_break_nothing():
    huge = np.finfo(np.float32).max
    about = bounds(column(huge, -huge, 1, 2, 3), 1.0)
    assert about.middle.tolist() == [2.0]
    assert about.reach.tolist() == pytest.approx([1.4826])


def test_scalars_are_held_direction_by_direction_and_who_was_far_is_named(round_model, tmp_path):
    sent = [((g, 10 * g), 10) for g in (1.0, 2.0, 3.0, 4.0)] + [((100.0, -1e30), 10)]
    merged_scalars, note = scalars(round_model, "value-clip", sent, tmp_path)
    first = (1.5174 + 2 + 3 + 4 + 4.4826) / 5  # within 1.4826 of 3
    # the second: median 20, |v - 20| are 10, 0, 10, 20 and huge
    second = (10 + 20 + 30 + 34.826 + 5.174) / 5
    assert merged_scalars == pytest.approx((first, second), rel=1e-5)
    assert note == "value-clip clipped pi-4 (zeroth-order), far from the others"


def test_a_stated_bound_holds_scalars_to_it(round_model, tmp_path):
    sent = [((0.5, -0.5), 10), ((9.0, -1e9), 10), ((1.0, 0.0), 20)]
    merged_scalars, _ = scalars(round_model, "value-clip", sent, tmp_path, clip=2.0)
    # no weight above the median of 10
    assert merged_scalars == pytest.approx(((0.5 + 2 + 1) / 3, (-0.5 - 2 + 0) / 3))


def test_with_a_stated_bound_a_device_alone_cannot_move_the_model_further(round_model, tmp_path):
    merged_scalars, note = scalars(round_model, "value-clip", [((1e9, -1e9), 10)], tmp_path, clip=2.0)
    assert merged_scalars == (2.0, -2.0)
    assert "1 zeroth-order too few for value-clip to detect false updates" in note


def test_samples_weigh_in_the_weighted_median_up_to_the_median_of_devices(round_model, tmp_path):
    """Samples 1, 1, 8, 8, 8: those of one sample weigh an eighth; a million would weigh as 8."""
    sent = [((-5.0, 0.0), 1), ((-4.0, 0.0), 1), ((1.0, 0.0), 8), ((2.0, 0.0), 8), ((3.0, 0.0), 1_000_000)]
    merged_scalars, _ = scalars(round_model, "weighted-median", sent, tmp_path)
    # 1 + 1 + 8 + 8 + 8: half is 13, reached at the fourth
    assert merged_scalars[0] == 2.0
    plain, _ = scalars(round_model, "median", sent, tmp_path)
    assert plain[0] == 1.0


@pytest.mark.parametrize("rule", ["median", "weighted-median", "trimmed-mean", "value-clip", "multi-krum"])
@pytest.mark.parametrize(
    "lie", [(-40.0, 40.0), (1e30, 1e30), (7.0, 7.0)], ids=["flipped and longer", "huge", "constant"]
)
def test_three_liars_of_ten_do_not_turn_the_scalars_of_a_round(round_model, tmp_path, rule, lie):
    """Honest scalars are about 4 and -4."""
    rng = np.random.default_rng(1)
    honest = [((4 + rng.normal() / 2, -4 + rng.normal() / 2), 20) for _ in range(7)]
    merged_scalars, _ = scalars(round_model, rule, [*honest, *[(lie, 10**6)] * 3], tmp_path, trim=0.3)
    assert merged_scalars == pytest.approx((4.0, -4.0), abs=1.0)
