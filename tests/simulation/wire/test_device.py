import pytest

from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue
from tests.simulation.wire.device import DeviceTime, PowerLost


def test_a_device_is_ahead_of_the_agenda_by_what_it_has_computed_in_one_step():
    agenda = VirtualTimeQueue(100.0)
    time = DeviceTime(agenda)
    with time.step():
        time.sleep(2.0)
        time.sleep(0.5)
        assert time.clock() == 102.5
        assert agenda.now == 100.0
    assert time.clock() == 100.0


def test_a_device_that_loses_its_power_at_a_moment_computes_no_further():
    time = DeviceTime(VirtualTimeQueue(100.0))
    time.dies_s = 103.0
    with pytest.raises(PowerLost), time.step():
        time.sleep(3.0)
        assert time.clock() == 103.0
        time.sleep(0.001)
    assert time.clock() == 100.0
