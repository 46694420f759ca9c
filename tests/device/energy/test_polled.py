import threading

import pytest

from device_runtime.device.energy.meter import (
    CounterIntegral,
    MeterError,
    MeterInfo,
    PolledMeter,
    PowerIntegral,
)


def polled(look, clock, every_s=3600.0, integral=None):
    return PolledMeter(
        MeterInfo("test", "all", 0.01, every_s=every_s), look, integral or PowerIntegral(1.0), clock
    )


def test_two_readings_have_between_them_what_was_drawn(clock):
    meter = polled(lambda: 4.0, clock)
    first = meter.read()
    clock.now = 1.5
    assert meter.read().joules - first.joules == 6.0
    meter.rest()


def test_the_thread_looks_in_between_and_stops_at_rest(clock):
    looked = threading.Semaphore(0)

    def look():
        clock.now += 1.0
        looked.release()
        return 2.0

    meter = polled(look, clock, every_s=0.001)
    meter.read()
    for _ in range(5):
        assert looked.acquire(timeout=120)
    meter.rest()
    rested = meter._integral.reading
    assert rested.joules >= 2.0 * 3
    for thread in [each for each in threading.enumerate() if each.name == "meter"]:
        thread.join(timeout=120)
    assert meter._integral.reading == rested


def test_a_look_that_fails_fails_the_reading_that_it_is_for(clock):
    def look():
        raise MeterError("gone")

    with pytest.raises(MeterError, match="gone"):
        polled(look, clock).read()


@pytest.mark.parametrize("error", [FileNotFoundError(2, "hwmon3 is gone"), ValueError("'1.2.3'")])
def test_a_device_file_that_goes_away_or_says_nonsense_fails_the_reading_and_no_more(error, clock):
    def look():
        raise error

    with pytest.raises(MeterError, match=r"gone|1\.2\.3"):
        polled(look, clock).read()


def test_where_no_thread_can_be_had_energy_is_not_measured(clock, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    meter = polled(lambda: 4.0, clock)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(MeterError, match="can't start new thread"):
            meter.read()
    meter.read()
    meter.rest()


def test_looks_that_fail_in_between_leave_a_gap(clock):
    answers = iter([5.0, 5.0])
    meter = polled(lambda: next(answers), clock)
    first = meter.read()
    clock.now = 10.0
    last = meter.read()
    meter.rest()
    assert last.joules - first.joules == 50.0
    assert last.variance == (9 * 5.0) ** 2


def test_what_passes_while_it_rests_is_not_added(clock):
    counter = iter([100.0, 110.0, 900.0, 905.0])
    meter = polled(lambda: next(counter), clock, integral=CounterIntegral())
    meter.read()
    assert meter.read().joules == 10.0
    meter.rest()
    meter.read()
    assert meter.read().joules == 15.0
    meter.rest()


def test_the_time_that_the_first_and_the_last_look_take_is_not_of_the_work(clock):
    def look():
        clock.now += 2.0
        return 5.0

    meter = polled(look, clock)
    first = meter.read()
    clock.now += 10.0
    assert meter.read().joules - first.joules == 50.0
    meter.rest()
