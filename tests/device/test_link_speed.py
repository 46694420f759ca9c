import pytest

from device_runtime.device.traffic import LARGE_BYTES, LinkSpeed
from device_runtime.profiles import Bandwidth

ASSUMED = Bandwidth(10.0, 20.0, "assumed")


def test_what_was_not_seen_stays_as_assumed():
    assert LinkSpeed().over(ASSUMED) == ASSUMED


def test_each_direction_is_an_average_of_large_transfers():
    link = LinkSpeed()
    link.saw_up(10 * LARGE_BYTES, 10.0)
    link.saw_up(30 * LARGE_BYTES, 10.0)
    rate = link.over(ASSUMED)
    assert rate.up == pytest.approx(2 * LARGE_BYTES)  # the mean of 1 and 3
    assert (rate.down, rate.source) == (20.0, "seen in earlier rounds")


def test_small_or_timeless_transfers_say_nothing():
    link = LinkSpeed()
    link.saw_down(LARGE_BYTES - 1, 1.0)
    link.saw_down(LARGE_BYTES, 0.0)
    assert link.over(ASSUMED) == ASSUMED
