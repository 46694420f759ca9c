import pytest

from device_runtime.device.energy import battery
from device_runtime.device.energy.meter import MeterError, NoMeter

# /sys/class/power_supply/BAT0/uevent of a notebook that discharges (a public design note on reading it).
DISCHARGING = """\
DEVTYPE=power_supply
POWER_SUPPLY_NAME=BAT0
POWER_SUPPLY_TYPE=Battery
POWER_SUPPLY_STATUS=Discharging
POWER_SUPPLY_PRESENT=1
POWER_SUPPLY_TECHNOLOGY=Li-poly
POWER_SUPPLY_CYCLE_COUNT=95
POWER_SUPPLY_VOLTAGE_MIN_DESIGN=11100000
POWER_SUPPLY_VOLTAGE_NOW=11206000
POWER_SUPPLY_POWER_NOW=19195000
POWER_SUPPLY_ENERGY_FULL_DESIGN=45280000
POWER_SUPPLY_ENERGY_FULL=42650000
POWER_SUPPLY_ENERGY_NOW=32940000
POWER_SUPPLY_CAPACITY=77
POWER_SUPPLY_CAPACITY_LEVEL=Normal
POWER_SUPPLY_MODEL_NAME=LNV-5B10W13895
POWER_SUPPLY_MANUFACTURER=SMP
POWER_SUPPLY_SERIAL_NUMBER= 3502
"""
# By charge instead of energy, full and on its charger (a comment in Deepin's dde-daemon, battery.go).
BY_CHARGE = """\
POWER_SUPPLY_NAME=BAT0
POWER_SUPPLY_STATUS=Full
POWER_SUPPLY_PRESENT=1
POWER_SUPPLY_TECHNOLOGY=Li-ion
POWER_SUPPLY_CYCLE_COUNT=0
POWER_SUPPLY_VOLTAGE_MIN_DESIGN=14800000
POWER_SUPPLY_VOLTAGE_NOW=16636000
POWER_SUPPLY_CURRENT_NOW=0
POWER_SUPPLY_CHARGE_FULL_DESIGN=2200000
POWER_SUPPLY_CHARGE_FULL=2167000
POWER_SUPPLY_CHARGE_NOW=2167000
POWER_SUPPLY_CAPACITY=100
POWER_SUPPLY_CAPACITY_LEVEL=Full
POWER_SUPPLY_MODEL_NAME=MWL31b
POWER_SUPPLY_MANUFACTURER=SMP-SDI2
POWER_SUPPLY_SERIAL_NUMBER=
"""
MOUSE = """\
POWER_SUPPLY_NAME=hidpp_battery_0
POWER_SUPPLY_TYPE=Battery
POWER_SUPPLY_SCOPE=Device
POWER_SUPPLY_STATUS=Discharging
"""
CHARGER = "POWER_SUPPLY_NAME=AC\nPOWER_SUPPLY_TYPE=Mains\nPOWER_SUPPLY_ONLINE=1\n"


def changed(text, **properties):
    lines = [
        line
        for line in text.splitlines()
        if line.removeprefix("POWER_SUPPLY_").split("=")[0] not in properties
    ]
    return "\n".join(
        [*lines, *(f"POWER_SUPPLY_{name}={value}" for name, value in properties.items() if value)]
    )


def machine(tmp_path, **supplies):
    for name, text in supplies.items():
        folder = tmp_path / battery.FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "uevent").write_text(text)
    return tmp_path


def test_power_is_told_in_microwatts():
    assert battery.watts([battery.supply(DISCHARGING)]) == 19.195


@pytest.mark.parametrize("sign", ["", "-"])
def test_without_power_it_is_current_and_voltage_whichever_sign_the_driver_gives(sign):
    text = changed(BY_CHARGE, STATUS="Discharging", CURRENT_NOW=f"{sign}1000000")
    assert battery.watts([battery.supply(text)]) == pytest.approx(16.636)


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown"])
def test_on_its_charger_a_battery_says_nothing_of_the_load(status):
    with pytest.raises(MeterError, match=f"the battery is {status.lower()}: .* comes from its charger"):
        battery.watts([battery.supply(changed(DISCHARGING, STATUS=status))])


def test_of_two_batteries_the_one_that_carries_the_load_counts():
    resting = battery.supply(changed(DISCHARGING, STATUS="Not charging", POWER_NOW="0"))
    assert battery.watts([resting, battery.supply(DISCHARGING)]) == 19.195


def test_what_is_left_is_energy_or_charge_at_the_voltage_of_the_design():
    assert battery.joules_left([battery.supply(DISCHARGING)]) == pytest.approx(32.94 * 3600)
    by_charge = battery.supply(changed(BY_CHARGE, STATUS="Discharging"))
    assert battery.joules_left([by_charge]) == pytest.approx(2.167 * 14.8 * 3600)


def test_the_machine_s_battery_is_found_beside_a_charger_and_a_mouse(tmp_path, clock):
    root = machine(tmp_path, AC=CHARGER, BAT0=DISCHARGING, mouse=MOUSE)
    meter = battery.find_meter(root, clock)
    first = meter.read()
    clock.now = 1.0
    last = meter.read()
    meter.rest()
    assert last.joules - first.joules == pytest.approx(19.195)
    assert meter.about is battery.POWER


def test_a_battery_that_tells_no_power_is_read_by_its_charge(tmp_path, clock):
    text = changed(DISCHARGING, POWER_NOW="0")
    meter = battery.find_meter(machine(tmp_path, BAT0=text), clock)
    first = meter.read()
    machine(tmp_path, BAT0=changed(text, ENERGY_NOW="32840000"))
    assert meter.read().joules - first.joules == pytest.approx(0.1 * 3600)
    meter.rest()
    assert meter.about is battery.CHARGE


def test_a_charger_that_is_put_in_ends_the_measuring(tmp_path, clock):
    meter = battery.find_meter(machine(tmp_path, BAT0=DISCHARGING), clock)
    meter.read()
    machine(tmp_path, BAT0=changed(DISCHARGING, STATUS="Charging"))
    with pytest.raises(MeterError, match="charger"):
        meter.read()
    meter.rest()


def test_a_machine_without_a_battery_has_no_such_meter(tmp_path, clock):
    with pytest.raises(NoMeter):
        battery.find_meter(machine(tmp_path, AC=CHARGER, mouse=MOUSE), clock)


def test_a_battery_that_tells_nothing_is_no_meter(tmp_path, clock):
    text = "POWER_SUPPLY_STATUS=Discharging\nPOWER_SUPPLY_CAPACITY=50\n"
    with pytest.raises(MeterError, match="neither power nor charge is told"):
        battery.find_meter(machine(tmp_path, BAT0=text), clock)
