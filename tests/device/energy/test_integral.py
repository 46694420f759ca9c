from math import sqrt

import pytest

from device_runtime.device.energy.meter import (
    CounterIntegral,
    Energy,
    MeterInfo,
    MeterReading,
    PowerIntegral,
    energy_of,
)


def added(integral, samples):
    for t, value in samples:
        integral = integral.after(t, value)
    return integral.reading


def test_steady_power_is_power_times_time_and_nothing_is_unsure_between_looks():
    assert added(PowerIntegral(1.0), [(t, 5.0) for t in range(11)]) == MeterReading(50.0, 0.0)


def test_power_between_two_looks_was_anything_from_one_to_the_other():
    reading = added(PowerIntegral(1.0), [(0.0, 2.0), (1.0, 6.0), (2.0, 6.0)])
    assert reading.joules == 4.0 + 6.0
    assert sqrt(reading.variance) == 2.0


def test_a_gap_is_bridged_and_raises_the_uncertainty_by_what_was_not_seen():
    """Four seconds at about 5 W where every second was to be looked at: three of them, 15 J, are a guess."""
    reading = added(PowerIntegral(1.0), [(0.0, 5.0), (4.0, 5.0)])
    assert reading.joules == 20.0
    assert sqrt(reading.variance) == 15.0


def test_a_look_that_is_a_little_late_is_no_gap():
    assert added(PowerIntegral(1.0), [(0.0, 5.0), (1.9, 5.0)]).variance == 0.0


def test_power_that_is_taken_to_hold_is_believed_to_no_joule():
    reading = PowerIntegral(1.0).after(0.0, 5.0).extend(2.0).after(3.0, 5.0).reading
    assert reading == MeterReading(15.0, 100.0)
    assert PowerIntegral(1.0).extend(5.0) == PowerIntegral(1.0)


def test_nothing_is_added_for_the_time_of_a_rest():
    integral = PowerIntegral(1.0).after(0.0, 5.0).after(1.0, 5.0).broken().after(100.0, 5.0).after(101.0, 5.0)
    assert integral.reading.joules == 10.0


def test_looks_at_a_ramp_add_up_to_its_area_however_unevenly_they_come():
    """P(t) = 2 t from 0 to 6 s: 36 J."""
    assert added(
        PowerIntegral(1.0), [(t, 2 * t) for t in (0.0, 0.3, 1.0, 2.5, 2.6, 4.0, 6.0)]
    ).joules == pytest.approx(36)


def test_a_counter_adds_its_steps_and_nothing_where_it_was_set_back():
    assert added(CounterIntegral(), [(0, 100.0), (1, 130.0), (2, 5.0), (3, 12.0)]).joules == 37.0


def test_a_counter_that_rested_goes_on_from_where_it_is_then():
    assert (
        CounterIntegral().after(0, 10.0).after(1, 12.0).broken().after(9, 90.0).after(10, 91.0).reading.joules
        == 3.0
    )


def test_errors_of_scale_step_and_gaps_add_up_by_their_squares():
    about = MeterInfo("m", "all", error=0.03, step_j=4.0)
    energy = energy_of(about, MeterReading(10.0, 9.0), MeterReading(110.0, 153.0))
    assert energy.joules == 100.0
    assert energy.uncertainty == pytest.approx(0.13)  # 3, 4 and 12 J of 100
    assert energy.is_measured


def test_what_the_device_would_have_used_idle_is_told_apart():
    energy = energy_of(MeterInfo("m", "all", 0.0), MeterReading(0.0), MeterReading(30.0), idle_j=12.0)
    assert (energy.joules, energy.above_idle_j) == (30.0, 18.0)


def test_above_idle_has_the_meter_s_error_of_both_figures_and_may_be_below_0():
    energy = energy_of(MeterInfo("m", "all", 0.1), MeterReading(0.0), MeterReading(30.0), idle_j=40.0)
    assert energy.above_idle_j == -10.0
    assert energy.above_idle_off_j == pytest.approx(5.0)  # 3 and 4 J


def test_of_less_than_a_meter_s_step_nothing_is_known():
    assert (
        energy_of(MeterInfo("m", "all", 0.05, step_j=36.0), MeterReading(0.0), MeterReading(20.0)).uncertainty
        == 1.0
    )
    assert energy_of(MeterInfo("m", "all", 0.05), MeterReading(7.0), MeterReading(7.0)).uncertainty == 1.0


def test_energy_says_nothing_was_measured_unless_it_names_a_meter():
    assert not Energy(3.0).is_measured
    assert Energy(3.0, "rapl", 0.05).is_measured
