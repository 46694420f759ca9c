"""Readers of this machine's state, over recorded outputs of the programs that tell it."""

import os
import resource
import subprocess
import sys
import time
from datetime import datetime

import psutil
import pytest

from device_runtime.device.policy import conditions
from device_runtime.device.policy.conditions import (
    COMMANDS_EACH_S,
    NETWORK_MANAGER,
    ConditionReader,
    Load,
    own_cpu_s,
    program_output,
)
from device_runtime.device.policy.rules import Charge, Policy

TERMUX_BATTERY = """{
  "present": true,
  "technology": "Li-ion",
  "health": "GOOD",
  "plugged": "UNPLUGGED",
  "status": "DISCHARGING",
  "temperature": "22.3",
  "voltage": 4099,
  "current": -820000,
  "percentage": 85,
  "level": 85,
  "scale": 100
}
"""
TERMUX_WIFI = """{
  "bssid": "02:00:00:00:00:00",
  "frequency_mhz": 5180,
  "ip": "192.168.1.23",
  "link_speed_mbps": 433,
  "rssi": -51,
  "ssid": "<unknown ssid>",
  "supplicant_state": "COMPLETED"
}
"""
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t0001A8C0\t00000000\t0001\t0\t0\t600\t00FFFFFF\t0\t0\t0
"""
PRESSURE = """some avg10=12.50 avg60=3.00 avg300=1.00 total=123456
full avg10=8.25 avg60=2.00 avg300=0.50 total=65432
"""


@pytest.mark.parametrize(
    ("text", "metered"),
    [
        ("u 1\n", True),
        ("u 2\n", False),
        ("u 3\n", True),
        ("u 4\n", False),
        ("u 0\n", None),
        ("", None),
        ("no", None),
    ],
)
def test_what_network_manager_says_over_d_bus(text, metered):
    assert conditions.metered_by_busctl(text) is metered


@pytest.mark.parametrize(
    ("text", "metered"),
    [
        ("GENERAL.METERED:no (guessed)\n", False),
        ("GENERAL.METERED:yes\n", True),
        ("GENERAL.METERED:yes (guessed)\n", True),
        ("GENERAL.METERED:unknown\n", None),
        ("", None),
    ],
)
def test_what_nmcli_says(text, metered):
    assert conditions.metered_by_nmcli(text) is metered


def test_what_termux_says_of_the_battery_and_the_network():
    assert conditions.charge_by_termux(TERMUX_BATTERY) == Charge(85.0, False)
    assert conditions.celsius_by_termux(TERMUX_BATTERY) == 22.3
    plugged = TERMUX_BATTERY.replace("UNPLUGGED", "PLUGGED_USB").replace('"22.3"', "29.5")
    assert conditions.charge_by_termux(plugged) == Charge(85.0, True)
    assert conditions.celsius_by_termux(plugged) == 29.5
    assert conditions.wifi_by_termux(TERMUX_WIFI) is True
    assert conditions.wifi_by_termux(TERMUX_WIFI.replace("COMPLETED", "DISCONNECTED")) is False
    assert conditions.wifi_by_termux(TERMUX_WIFI.replace("192.168.1.23", "")) is False


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"percentage": 300}', '{"percentage": "much"}', "[" * 9999]
)
def test_what_is_not_the_expected_json_says_nothing(text):
    assert conditions.charge_by_termux(text) is None
    assert conditions.celsius_by_termux(text) is None
    assert conditions.wifi_by_termux(text) is None


def test_the_default_route_is_the_one_of_the_least_metric():
    assert conditions.default_interface(ROUTES) == "eth0"
    assert conditions.default_interface(ROUTES.splitlines()[0]) is None


def test_processor_time_that_was_idle_or_stolen_is_not_used():
    ticks = conditions.read_ticks("cpu  100 20 30 800 40 5 5 50 7 0\ncpu0 1 2 3 4\n")
    assert ticks == conditions.Ticks(100 + 20 + 30 + 800 + 40 + 5 + 5 + 50, 100 + 20 + 30 + 5 + 5)
    assert conditions.read_ticks("intr 1 2 3") is None


def test_the_time_in_which_all_stood_still_for_memory():
    assert conditions.stalled(PRESSURE) == 8.25
    assert conditions.stalled("") == 0.0


def test_what_a_device_has_started_is_its_own_load_while_it_runs_and_after():
    program = "sum(range(3_000_000)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as working:
        working.stdout.readline()
        times = psutil.Process(working.pid).cpu_times()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        ours = time.process_time()
        assert own_cpu_s() >= ours + ended + times.user
        working.communicate(b"\n")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert ended >= times.user
    ours = time.process_time()
    assert own_cpu_s() >= ours + ended - 0.02


def test_the_load_of_others_is_without_our_own(tmp_path, clock):
    stat, hertz, own = tmp_path / "stat", os.sysconf("SC_CLK_TCK"), [0.0]
    load = Load(stat, lambda: own[0], clock)
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
    assert load.reading().source == "load of the last minute"
    clock.now, own[0] = 10.0, 4.0
    stat.write_text(f"cpu  {6 * hertz} 0 0 {14 * hertz} 0 0 0 0 0 0\n")
    assert load.reading().value == pytest.approx(100 * (6 - 4) / 20)
    clock.now = 12.0  # too soon to say anything new
    stat.write_text(f"cpu  {60 * hertz} 0 0 {14 * hertz} 0 0 0 0 0 0\n")
    assert load.reading().value == pytest.approx(10.0)


def look(policy, clock, answers=()):
    """A look at a machine on which these programs answer; what was asked is kept."""
    commands, replies = [], dict(answers)

    def say(command):
        commands.append(tuple(command))
        return replies.get(tuple(command), "")

    when = datetime(2026, 11, 22, 12, 0)
    return ConditionReader(policy, lambda: 7, say, now=lambda: when, clock=clock), commands


def test_nothing_is_looked_at_that_no_rule_asks_for(clock):
    looked, commands = look(Policy(), clock)
    conditions = looked.conditions()
    assert commands == []
    assert (conditions.charge.value, conditions.metered.value, conditions.bytes_today) == (None, None, 0)


def test_a_phone_tells_through_termux_and_is_asked_now_and_then_only(clock):
    answers = {("termux-battery-status",): TERMUX_BATTERY, ("termux-wifi-connectioninfo",): TERMUX_WIFI}
    policy = Policy(mains=True, below_c=40, unmetered=True, daily_bytes=10)
    looked, commands = look(policy, clock, answers)
    for _ in range(5):
        conditions = looked.conditions()
    assert conditions.charge.value == Charge(85.0, False)
    assert conditions.celsius.value == 22.3
    assert (conditions.metered.value, conditions.metered.source) == (False, "taken so: by Wi-Fi")
    assert conditions.bytes_today == 7
    assert commands.count(("termux-battery-status",)) == 1
    clock.now += COMMANDS_EACH_S
    looked.conditions()
    assert commands.count(("termux-battery-status",)) == 2


LAPTOP = (
    "POWER_SUPPLY_NAME=BAT0\nPOWER_SUPPLY_TYPE=Battery\nPOWER_SUPPLY_STATUS={}\nPOWER_SUPPLY_CAPACITY=80\n"
)
SECOND = LAPTOP.replace("BAT0", "BAT1").replace("=80", "=20")
MOUSE = (
    "POWER_SUPPLY_NAME=hidpp_battery_0\nPOWER_SUPPLY_TYPE=Battery\nPOWER_SUPPLY_SCOPE=Device\n"
    "POWER_SUPPLY_STATUS=Discharging\nPOWER_SUPPLY_CAPACITY=5\n"
)
PLUG = "POWER_SUPPLY_NAME=ADP1\nPOWER_SUPPLY_TYPE=Mains\nPOWER_SUPPLY_ONLINE={}\n"
WATT_HOURS = "POWER_SUPPLY_ENERGY_NOW={}\nPOWER_SUPPLY_ENERGY_FULL={}\n"


@pytest.mark.parametrize(
    ("texts", "charge"),
    [
        ([], Charge(None, True)),
        ([MOUSE], Charge(None, True)),
        ([LAPTOP.format("Discharging"), PLUG.format(0), MOUSE], Charge(80.0, False)),
        ([LAPTOP.format("Not charging"), PLUG.format(1)], Charge(80.0, True)),  # kept at 80%
        ([LAPTOP.format("Discharging"), PLUG.format(1)], Charge(80.0, True)),  # a charger that is too weak
        ([LAPTOP.format("Charging")], Charge(80.0, True)),
        ([LAPTOP.format("Not charging"), SECOND.format("Discharging"), PLUG.format(0)], Charge(20.0, False)),
        (
            [
                LAPTOP.format("Unknown") + WATT_HOURS.format(20, 25),
                SECOND.format("Discharging") + WATT_HOURS.format(10, 75),
            ],
            Charge(30.0, False),
        ),
        ([LAPTOP.format("Unknown")], None),
        ([LAPTOP.format("Discharging").replace("CAPACITY", "NOTHING")], None),
    ],
)
def test_what_linux_says_of_power_supplies(texts, charge):
    assert conditions.charge_by_supplies(texts) == charge


def test_a_desktop_with_the_battery_of_a_mouse_is_on_mains(clock, tmp_path):
    (tmp_path / "hidpp_battery_0").mkdir()
    (tmp_path / "hidpp_battery_0" / "uevent").write_text(MOUSE)
    looked, _ = look(Policy(mains=True), clock)
    looked.supplies = tmp_path
    reading = looked.conditions().charge
    assert (reading.value, reading.source) == (Charge(None, True), "it has no battery")


def test_a_machine_without_a_folder_of_supplies_is_on_mains(clock, tmp_path, monkeypatch):
    def missing():
        raise FileNotFoundError("/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", missing, raising=False)
    looked, _ = look(Policy(mains=True), clock)
    looked.supplies = tmp_path / "power_supply"
    reading = looked.conditions().charge
    assert (reading.value, reading.source) == (Charge(None, True), "it has no battery")


def test_where_no_sys_is_shown_it_is_not_taken_to_be_on_mains(clock, tmp_path):
    looked, _ = look(Policy(mains=True), clock)
    looked.supplies = tmp_path / "sys" / "class" / "power_supply"
    reading = looked.conditions().charge
    assert reading.value is None
    assert "there is no" in reading.source


def test_a_rule_about_the_load_does_not_hold_where_the_load_is_hidden(clock, tmp_path, monkeypatch):
    def denied(self, recursive=False):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "children", denied)
    assert own_cpu_s() > 0
    hidden = ConditionReader(Policy(others_below=50), load=Load(stat=tmp_path / "stat"))
    assert hidden.conditions().others.value is None

    def unobtainable():
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", unobtainable)
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 0 10 80 0 0 0 0 0 0\n")
    assert Load(stat=stat).reading().value is None


def test_a_phone_that_shows_its_supplies_to_nobody_has_a_battery_all_the_same(clock, tmp_path):
    (tmp_path / "battery").mkdir()
    (tmp_path / "battery" / "uevent").symlink_to("uevent")  # read by nobody, by root neither
    looked, _ = look(Policy(mains=True), clock)
    looked.supplies = tmp_path
    reading = looked.conditions().charge
    assert reading.value is None
    assert "install Termux:API" in reading.source


def test_network_manager_is_believed_before_anything_else(clock):
    looked, commands = look(Policy(unmetered=True), clock, {NETWORK_MANAGER: "u 1\n"})
    assert looked.conditions().metered.value is True
    assert commands == [NETWORK_MANAGER]


def test_where_nobody_tells_of_the_network_that_is_said(clock):
    looked, _ = look(Policy(unmetered=True), clock)
    metered = looked.conditions().metered
    assert (metered.value, metered.source) == (None, "neither NetworkManager nor Termux:API says")


def test_programs_that_are_not_there_fail_or_hang_say_nothing(monkeypatch):
    monkeypatch.setattr("device_runtime.device.policy.conditions.COMMAND_S", 0.2)
    assert program_output(["echo", "yes"]) == "yes\n"
    assert program_output(["no-such-program-anywhere"]) == ""
    assert program_output(["false"]) == ""
    assert program_output(["sleep", "30"]) == ""
