from math import isnan

import pytest

from device_runtime.device.energy import (
    Account,
    Energy,
    MeterError,
    MeterInfo,
    MeterReading,
    modelled,
    resting,
    together,
)
from device_runtime.device.energy.meter import CounterIntegral, PolledMeter
from device_runtime.device.errors import OutOfMemory, WorkStopped
from device_runtime.profiles import Power

POWER = Power(2.0, 8.0, "maker", uncertainty=0.4)


class Scripted:
    """A meter whose readings are given; an error among them is raised."""

    def __init__(self, *readings, step_j=0.0):
        self.about = MeterInfo("scripted", "all", error=0.05, step_j=step_j)
        self.readings, self.rests = list(readings), 0

    def read(self):
        reading = self.readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return MeterReading(reading)

    def rest(self):
        self.rests += 1


def test_without_a_meter_energy_is_idle_power_and_more_while_the_processor_works():
    energy = modelled(POWER, seconds=10.0, busy_s=4.0)
    assert energy.joules == 6 * 2 + 4 * 8
    assert (energy.source, energy.uncertainty, energy.is_measured) == ("modelled", 0.4, False)
    assert energy.above_idle_j == 4 * 6


@pytest.mark.parametrize("busy_s, joules", [(25.0, 80.0), (-1.0, 20.0)])
def test_the_processor_works_for_us_at_most_all_of_the_time(busy_s, joules):
    assert modelled(POWER, 10.0, busy_s).joules == joules


def test_a_pretended_device_computes_all_the_time():
    account = Account()
    account.begin()
    assert account.end(POWER, 10.0).joules == 80.0


def test_the_process_s_own_seconds_of_computing_count_from_the_beginning():
    seconds = iter([100.0, 104.0])
    account = Account(cpu=lambda: next(seconds))
    account.begin()
    assert account.end(POWER, 10.0).joules == 6 * 2 + 4 * 8


def test_a_meter_s_figure_is_taken_as_it_is_and_the_meter_rests():
    meter = Scripted(50.0, 90.0)
    account = Account(meter)
    account.begin()
    energy = account.end(POWER, 10.0)
    assert (energy.joules, energy.source, energy.is_measured) == (40.0, "scripted", True)
    assert energy.uncertainty == pytest.approx(0.05)
    assert isnan(energy.above_idle_j)
    assert meter.rests == 1


def test_above_idle_is_told_where_idle_was_measured():
    account = Account(Scripted(50.0, 90.0), idle_w=1.5)
    account.begin()
    assert account.end(POWER, 10.0).above_idle_j == 25.0


@pytest.mark.parametrize("readings", [(MeterError("unplugged"),), (50.0, MeterError("unplugged"))])
def test_a_meter_that_fails_leaves_a_modelled_figure_and_is_warned_of_once(readings, caplog):
    meter = Scripted(*readings, *readings)
    account = Account(meter)
    for _ in range(2):
        account.begin()
        assert account.end(POWER, 10.0) == modelled(POWER, 10.0, 10.0)
    assert caplog.messages == ["energy is modelled: scripted: unplugged"]
    assert meter.rests == 2


def test_what_a_meter_is_too_coarse_for_is_modelled():
    account = Account(Scripted(0.0, 36.0, step_j=36.0))
    account.begin()
    assert account.end(POWER, 10.0).source == "modelled"


def test_a_sum_is_off_by_as_much_as_its_parts_and_measured_if_all_of_them_are():
    a, b, guess = Energy(30.0, "rapl", 0.1), Energy(10.0, "battery", 0.3), Energy(60.0, "modelled", 1.0)
    same, mixed = together([a, a]), together([a, b])
    assert (same.joules, same.source, same.uncertainty) == (60.0, "rapl", pytest.approx(0.1))
    assert (mixed.joules, mixed.source, mixed.uncertainty) == (40.0, "mixed", pytest.approx(0.15))
    assert together([a, guess]).source == "modelled"
    assert not together([]).is_measured


def test_what_passes_while_the_work_stands_still_is_not_its_energy(clock):
    counter = iter([0.0, 30.0, 500.0, 520.0])
    meter = PolledMeter(
        MeterInfo("m", "all", 0.0, every_s=3600.0), lambda: next(counter), CounterIntegral(), clock
    )
    account = Account(meter)
    account.begin()
    with resting(meter):
        clock.now += 1000.0
    assert account.end(POWER, 10.0).joules == 50.0


def test_work_that_is_given_up_while_it_stands_still_leaves_the_meter_at_rest():
    meter = Scripted(1.0, 2.0)
    account = Account(meter)
    account.begin()
    with pytest.raises(WorkStopped), resting(meter):
        raise WorkStopped("overtaken")
    assert (meter.rests, meter.readings) == (1, [])


def test_what_is_done_instead_of_work_that_did_not_get_on_is_measured(clock):
    counter = iter([0.0, 30.0, 500.0, 520.0])
    meter = PolledMeter(
        MeterInfo("m", "all", 0.0, every_s=3600.0), lambda: next(counter), CounterIntegral(), clock
    )
    account = Account(meter)
    account.begin()
    with pytest.raises(OutOfMemory), resting(meter):
        raise OutOfMemory("too little by now")
    assert account.end(POWER, 10.0).joules == 50.0


def test_where_nothing_is_measured_nothing_rests():
    with resting(None):
        pass
