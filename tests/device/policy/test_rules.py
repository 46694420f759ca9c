"""The owner's rules: each by hand, on conditions that are given."""

from dataclasses import replace
from datetime import datetime

import pytest

from device_runtime.device.errors import PolicyError
from device_runtime.device.policy.rules import Charge, Conditions, DayWindow, Policy, Reading, judge

NOON = datetime(2026, 11, 22, 12, 0)


def verdict_on(policy, active=frozenset(), when=NOON, **conditions):
    return judge(policy, Conditions(when, **conditions), active)


def charge(percent, plugged=False):
    return Reading(Charge(percent, plugged), "a test")


def test_without_rules_a_device_may_always_work():
    assert verdict_on(Policy()).allows
    assert verdict_on(Policy()).rules == ()


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-06:30", ("22:00", "23:59", "00:00", "06:29"), ("06:30", "12:00", "21:59")),
        ("09:00-17:00", ("09:00", "16:59"), ("08:59", "17:00", "00:00")),
        ("18:00-24:00", ("18:00", "23:59"), ("00:00", "17:59")),
        ("00:00-24:00", ("00:00", "12:00", "23:59"), ()),
    ],
)
def test_a_window_is_from_its_start_until_its_end_over_midnight_too(text, inside, outside):
    policy = Policy(windows=(DayWindow.of(text),))
    for times, allowed in ((inside, True), (outside, False)):
        for time in times:
            when = datetime.fromisoformat(f"2026-11-22 {time}")
            assert verdict_on(policy, when=when).allows == allowed, time


def test_of_several_windows_one_is_enough_and_all_are_named():
    policy = Policy(windows=(DayWindow.of("01:00-02:00"), DayWindow.of("11:30-12:30")))
    assert verdict_on(policy).allows
    verdict = verdict_on(policy, when=NOON.replace(hour=14))
    assert verdict.reasons == ("it is 14:00, outside 01:00-02:00, 11:30-12:30",)


@pytest.mark.parametrize(
    "text", ["", "9-17", "25:00-26:00", "09:60-10:00", "09:00", "nine-five", "-1:00-2:00"]
)
def test_what_is_no_part_of_the_day_is_refused_with_what_was_expected(text):
    with pytest.raises(PolicyError, match="expected 22:00-06:30"):
        DayWindow.of(text)


def test_only_on_mains_power():
    assert verdict_on(Policy(mains=True), charge=charge(5, plugged=True)).allows
    assert verdict_on(Policy(mains=True), charge=charge(95)).reasons == ("on battery power (a test)",)
    assert verdict_on(Policy(mains=True), charge=Reading(Charge(None, True), "it has no battery")).allows


def test_a_battery_that_held_work_up_must_come_back_by_five_points():
    policy = Policy(battery_above=40)
    assert verdict_on(policy, charge=charge(40)).allows
    low = verdict_on(policy, charge=charge(39))
    assert low.reasons == ("battery at 39% is below 40%",)
    assert not verdict_on(policy, low.failed_rules, charge=charge(44)).allows
    assert verdict_on(policy, low.failed_rules, charge=charge(45)).allows
    assert verdict_on(policy, charge=charge(41)).allows


def test_a_battery_that_is_kept_at_a_level_on_mains_power_holds_nothing_up():
    policy = Policy(battery_above=80)
    low = verdict_on(policy, charge=charge(79, plugged=True))
    assert not low.allows
    assert verdict_on(policy, low.failed_rules, charge=charge(80, plugged=True)).allows


def test_a_full_battery_is_enough_whatever_was_asked_for():
    assert verdict_on(Policy(battery_above=98), frozenset({"battery"}), charge=charge(100)).allows


def test_heat_that_held_work_up_must_go_by_three_degrees():
    policy = Policy(below_c=70)
    hot = verdict_on(policy, celsius=Reading(70.0, "a sensor"))
    assert hot.reasons == ("70 °C is not below 70 (a sensor)",)
    assert not verdict_on(policy, hot.failed_rules, celsius=Reading(67.0, "a sensor")).allows
    assert verdict_on(policy, hot.failed_rules, celsius=Reading(66.9, "a sensor")).allows
    assert verdict_on(policy, celsius=Reading(69.9, "a sensor")).allows


def test_others_who_held_work_up_must_use_a_fifth_less():
    policy = Policy(others_below=50)
    busy = verdict_on(policy, others=Reading(50.0, "/proc/stat"))
    assert not busy.allows
    assert not verdict_on(policy, busy.failed_rules, others=Reading(40.0, "/proc/stat")).allows
    assert verdict_on(policy, busy.failed_rules, others=Reading(39.0, "/proc/stat")).allows


def test_a_metered_network_is_spared_and_not_only_not_worked_on():
    verdict = verdict_on(Policy(unmetered=True), metered=Reading(True, "NetworkManager"))
    assert (verdict.allows, verdict.quiet) == (False, True)
    assert verdict_on(Policy(unmetered=True), metered=Reading(False, "NetworkManager")).allows
    assert not verdict_on(Policy(mains=True), charge=charge(50)).quiet


def test_no_more_than_so_many_bytes_a_day():
    policy = Policy(daily_bytes=2_000_000)
    assert verdict_on(policy, bytes_today=1_999_999).allows
    spent = verdict_on(policy, bytes_today=2_000_000)
    assert (spent.allows, spent.quiet) == (False, True)
    assert spent.reasons == ("2.00 of 2 MB sent and received today",)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(mains=True),
        Policy(battery_above=1),
        Policy(below_c=99),
        Policy(unmetered=True),
        Policy(others_below=99),
    ],
)
def test_what_is_not_known_is_said_and_holds_work_up_unless_the_owner_says_otherwise(policy):
    verdict = verdict_on(policy)
    assert not verdict.allows
    assert "not known here (not looked at)" in verdict.reasons[0]
    assert verdict_on(replace(policy, unknown_allows=True)).allows


def test_a_pause_by_hand_stands_over_all():
    verdict = verdict_on(Policy(mains=True), paused="by hand, since noon", charge=charge(90, plugged=True))
    assert verdict.reasons == ("by hand, since noon",)
    assert verdict.failed_rules == {"paused"}


def test_all_that_says_no_is_named():
    verdict = verdict_on(Policy(mains=True, battery_above=50), charge=charge(20))
    assert [rule.name for rule in verdict.rules] == ["mains", "battery"]
    assert len(verdict.reasons) == 2
