"""Amounts as people read them."""

from math import nan

import pytest
from msgspec.structs import replace

from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.compare.figures import (
    BYTES,
    asked_devices,
    decimals,
    digits,
    duration,
    unit_for,
)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 s"),
        (3, "3 s"),
        (0.25, "0.25 s"),
        (0.005, "5 ms"),
        (0.0432, "43 ms"),
        (48.4, "48 s"),
        (119, "119 s"),
        (125, "2.1 min"),
        (7200, "2 h"),
        (86400 * 3.25, "3.2 days"),
        (nan, "–"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "value, text",
    [(3.14159, "3.14"), (31.4159, "31.4"), (314.159, "314"), (3141.59, "3,142"), (2.0, "2"), (0, "0")],
)
def test_three_digits_and_all_of_the_whole_number(value, text):
    assert digits(value) == text


def test_a_unit_is_taken_when_there_are_two_of_it():
    assert unit_for(1_999_999, BYTES) == ("kB", 1e3)
    assert unit_for(2_000_000, BYTES) == ("MB", 1e6)
    assert unit_for(0, BYTES) == ("B", 1.0)


def test_decimals_of_nothing_are_none():
    assert decimals(0.0) == 0
    assert decimals(0.0123) == 4


def test_who_is_asked_is_said_of_buffered_rounds_too():
    task = Task(bundle="digits-wrn-10-1")
    assert asked_devices(task) == "every device that is there asked in each"
    assert asked_devices(replace(task, devices_per_round=1500)) == "1,500 devices asked in each"
    first = replace(task, devices_per_round=3, ask_all_rounds=1)
    assert asked_devices(first) == "3 devices asked in each, all in the first"
    assert asked_devices(replace(first, ask_all_rounds=2)).endswith(", all in the first 2")
    buffered = replace(task, devices_per_round=1500, buffer_size=20)
    assert asked_devices(buffered) == "1,500 devices at work, closed by 20 updates"
