import json
import os

import pytest

from device_runtime.device.energy import battery
from device_runtime.device.energy.meter import MeterError, NoMeter

# In milliamperes, without a voltage (github.com/termux/termux-api/issues/364).
OLDER = """\
{
  "health": "GOOD",
  "percentage": 59,
  "plugged": "UNPLUGGED",
  "status": "DISCHARGING",
  "temperature": 27.200000762939453,
  "current": -693
}
"""
# Positive though it discharges, and not said to (github.com/lambdalisue/vim-battery/issues/9).
OTHER_SIGN = """\
{
  "health": "GOOD",
  "percentage": 52,
  "plugged": "UNPLUGGED",
  "status": "NOT_CHARGING",
  "temperature": 31.0,
  "current": 232
}
"""
# On its charger, by a newer version, in microamperes (tests of a public dashboard, "printed verbatim").
CHARGING = """\
{
  "present": true,
  "technology": "Li-ion",
  "health": "GOOD",
  "plugged": "PLUGGED_AC",
  "status": "CHARGING",
  "temperature": 29.5,
  "voltage": 3868,
  "current": 470000,
  "current_average": 476,
  "percentage": 27,
  "level": 27,
  "scale": 100,
  "charge_counter": 7300000
}
"""
NEWER = json.dumps(
    {**json.loads(CHARGING), "plugged": "UNPLUGGED", "status": "DISCHARGING", "current": -540781}
)


def test_milliamperes_and_microamperes_are_told_apart_by_their_size():
    assert battery.phone_watts(battery.status(OLDER)) == pytest.approx(0.693 * 3.85)
    assert battery.phone_watts(battery.status(NEWER)) == pytest.approx(0.540781 * 3.868)


def test_the_sign_is_the_vendor_s_and_the_status_says_the_way():
    assert battery.phone_watts(battery.status(OTHER_SIGN)) == pytest.approx(0.232 * 3.85)


def test_a_voltage_in_volts_is_understood():
    assert battery.volts({"voltage": 3868}) == 3.868
    assert battery.volts({"voltage": 4}) == 4.0
    assert battery.volts({}) is None


def test_on_its_charger_nothing_is_known_of_the_phone():
    with pytest.raises(MeterError, match="PLUGGED_AC: what the phone uses comes from its charger"):
        battery.phone_watts(battery.status(CHARGING))


@pytest.mark.parametrize("text", ["", "not json", "[1]"])
def test_what_is_no_status_is_shown(text):
    with pytest.raises(MeterError, match="termux-battery-status says"):
        battery.status(text)


def test_a_status_without_a_current_is_no_power():
    with pytest.raises(MeterError, match="status 'DISCHARGING' and current None"):
        battery.phone_watts(battery.status('{"status": "DISCHARGING"}'))


@pytest.mark.parametrize("text, error", [(OLDER, 0.20), (NEWER, 0.10)])
def test_a_phone_is_found_and_believed_less_without_a_voltage(tmp_path, clock, monkeypatch, text, error):
    (tmp_path / "termux-battery-status").write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    (tmp_path / "termux-battery-status").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    meter = battery.phone_meter(tmp_path, clock)
    first = meter.read()
    clock.now = 10.0
    assert meter.read().joules - first.joules == pytest.approx(10 * battery.phone_watts(battery.status(text)))
    meter.rest()
    assert meter.about.error == error


def test_elsewhere_there_is_no_such_meter(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoMeter):
        battery.phone_meter(tmp_path, clock)
