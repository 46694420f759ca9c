from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.profiles.fleets.groups import DAY, Availability, normalised_windows

HOUR = 3600


def of(*windows):
    """One device with these windows, (start, length) in seconds."""
    starts, lengths = zip(*windows, strict=True)
    return Availability(normalised_windows(np.array([starts]), np.array([lengths])))


def test_a_night_over_midnight():
    device = of((22 * HOUR, 8 * HOUR))
    assert device.available(0, 0.0)
    assert device.until(0, 0.0) == 6 * HOUR
    assert not device.available(0, 6 * HOUR)
    assert device.next(0, 6 * HOUR) == 22 * HOUR
    assert device.until(0, 23.5 * HOUR) == 30 * HOUR
    assert device.next(0, 23.5 * HOUR) == 23.5 * HOUR
    assert device.until(0, 12 * HOUR) == 12 * HOUR


def test_two_windows_a_day():
    device = of((1 * HOUR, 2 * HOUR), (12 * HOUR, HOUR))
    assert [device.next(0, hour * HOUR) / HOUR for hour in (0, 2, 5, 12.5, 14)] == [1, 2, 12, 12.5, 25]
    assert [device.until(0, hour * HOUR) / HOUR for hour in (0, 2, 5, 12.5, 14)] == [0, 3, 5, 13, 14]


def test_windows_that_overlap_or_touch_are_one():
    assert of((2 * HOUR, 4 * HOUR), (5 * HOUR, 3 * HOUR)).until(0, 3 * HOUR) == 8 * HOUR
    assert of((5 * HOUR, 3 * HOUR), (2 * HOUR, 4 * HOUR)).until(0, 3 * HOUR) == 8 * HOUR
    assert of((2 * HOUR, 4 * HOUR), (6 * HOUR, HOUR)).until(0, 3 * HOUR) == 7 * HOUR
    assert of((2 * HOUR, 9 * HOUR), (3 * HOUR, HOUR)).until(0, 3 * HOUR) == 11 * HOUR


def test_always_and_never():
    whole = of((5 * HOUR, 14 * HOUR), (18 * HOUR, 12 * HOUR))
    assert whole.until(0, 7.25) == inf
    assert whole.next(0, 7.25) == 7.25
    none = of((5 * HOUR, 0), (7 * HOUR, 0))
    assert not none.available(0, 5 * HOUR)
    assert none.next(0, 5 * HOUR) == inf
    assert none.until(0, 5 * HOUR) == 5 * HOUR


MINUTES = st.integers(0, DAY // 60)
WINDOWS = st.lists(st.tuples(MINUTES, MINUTES), min_size=1, max_size=2)


@given(WINDOWS, st.integers(0, 3 * DAY // 60))
def test_the_closed_form_is_what_a_scan_by_minutes_finds(windows, minute):
    device = of(*[(start * 60, length * 60) for start, length in windows])
    day = DAY // 60
    presence = [any((m - start) % day < length for start, length in windows) for m in range(day)]
    ahead = [presence[(minute + k) % day] for k in range(day + 1)]
    now = minute * 60.0
    assert device.available(0, now) == ahead[0]
    assert device.present(now)[0] == ahead[0]
    arrives = now + 60 * ahead.index(True) if True in ahead else inf
    leaves = now + 60 * ahead.index(False) if False in ahead else inf
    assert device.next(0, now) == arrives
    assert device.until(0, now) == leaves


@given(WINDOWS, st.floats(0, 1e7))
def test_it_is_there_when_it_comes_and_gone_when_it_goes_at_any_fraction_of_a_second(windows, t):
    device = of(*[(start * 60 + 1, length * 60) for start, length in windows])
    arrives, leaves = device.next(0, t), device.until(0, t)
    assert t <= arrives <= t + DAY or arrives == inf
    assert t <= leaves <= t + DAY or leaves == inf
    assert arrives == inf or device.available(0, arrives)
    assert leaves == inf or not device.available(0, leaves)
    assert (arrives == t) == device.available(0, t)
