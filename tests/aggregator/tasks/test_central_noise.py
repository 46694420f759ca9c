from dataclasses import replace
from math import sqrt

import dp_accounting
import pytest
from msgspec import structs

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.mask_settings import ROUNDING, CentralNoise, MaskSettings
from device_runtime.broker.wire.messages import HelperKey, Masks
from device_runtime.strategies.masking.layout import SumLayout, TensorPart
from device_runtime.strategies.masking.noise import MOST
from device_runtime.strategies.terms.accountant import ORDERS, PrivacyBudget

MASKS = MaskSettings(("site-a=" + "5b" * 32,), 5, 4.0, 1e-5, 0.5)
NOISE = CentralNoise(PrivacyBudget(4.0, 1e-5), 0.5, 20)


def layout(values, exponent):
    return SumLayout((TensorPart("w", (values,), 1.0, exponent, None),), (), None)


def test_the_noise_of_all_rounds_spends_the_budget_and_hardly_less():
    assert NOISE.spent([NOISE.noise_milli] * 20) <= 4.0
    assert NOISE.spent([NOISE.noise_milli - 5] * 20) > 4.0


def test_what_is_spent_is_that_of_a_gaussian_with_the_longest_rounded_update():
    """Gaussians compose to one: twenty of noise s are one of s / sqrt(20)."""
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS)
    noise = NOISE.noise_milli / 1000 / (1 + ROUNDING)
    accountant.compose(dp_accounting.GaussianDpEvent(noise / sqrt(20)))
    assert NOISE.spent([NOISE.noise_milli] * 20) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    assert NOISE.spent([]) == 0


def test_rounds_beyond_the_budget_are_refused():
    rounds = [NOISE.noise_milli] * 19
    assert NOISE.refusal(rounds) == ""
    why = NOISE.refusal([*rounds, NOISE.noise_milli])
    assert why.startswith("one more round would spend epsilon 4.1")
    assert why.endswith("after 20 with noise, and the budget is epsilon 4 at delta 1e-05")
    assert NOISE.refusal([NOISE.noise_milli // 3] * 5), "rounds with less noise have spent more"


def test_more_rounds_take_more_noise_and_the_deviation_grows_with_the_norm():
    assert CentralNoise(NOISE.budget, 0.5, 80).noise_milli == pytest.approx(2 * NOISE.noise_milli, abs=2)
    assert replace(NOISE, clip_norm=1.0).deviation == 2 * NOISE.deviation
    assert NOISE.deviation == NOISE.noise_milli / 1000 * 0.5


def test_the_offer_has_noise_and_norm_in_thousandths():
    offered = Masks(helpers=(HelperKey("a", bytes(32)),), min_group=5, capacity=64, most_weight=9)
    noisy = NOISE.added_to(offered)
    assert (noisy.noise_milli, noisy.clip_milli) == (NOISE.noise_milli, 500)
    assert structs.replace(noisy, noise_milli=0, clip_milli=0) == offered


def test_settings_without_noise_have_none():
    assert CentralNoise.of(MASKS, 20) == NOISE
    assert CentralNoise.of(MaskSettings(MASKS.helpers), 20) is None


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(TaskError, match="masks.epsilon: no noise keeps 1000000000 steps"):
        CentralNoise.of(structs.replace(MASKS, epsilon=1e-6, delta=1e-12), 10**9)


def test_a_fixed_point_that_is_too_coarse_for_the_norm_is_a_misfit():
    """1,000,000 values of 2^-16 are rounded by 0.5 * 1000 / 65536 = 0.0076 at most, 1% of 0.5 is 0.005."""
    assert "rounding changes an update by up to 0.0076, more than 1% of masks.clip_norm" in NOISE.misfit(
        layout(1_000_000, 16)
    )
    assert NOISE.misfit(layout(1_000_000, 17)) == ""


def test_noise_for_which_the_fixed_point_has_no_room_is_a_misfit():
    loud = replace(NOISE, clip_norm=20.0)
    fits = int(MOST / loud.deviation).bit_length() - 1
    assert loud.misfit(layout(10, fits)) == ""
    assert "in a sum is more than the fixed point has room for" in loud.misfit(layout(10, fits + 1))
