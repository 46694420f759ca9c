import pytest

from device_runtime.device.energy import MeterError, find_meter
from device_runtime.device.energy.meter_choice import HERE, METER_OPTIONS
from device_runtime.profiles import Power

POWER = Power(2.0, 8.0, "maker", uncertainty=0.4)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with nothing to measure with."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def rapl(root):
    folder = root / "sys/class/powercap/intel-rapl:0"
    folder.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "5"), ("max_energy_range_uj", "262143328850")):
        (folder / name).write_text(text)
    return folder


def battery(root, status="Discharging"):
    folder = root / "sys/class/power_supply/BAT0"
    folder.mkdir(parents=True)
    text = f"POWER_SUPPLY_TYPE=Battery\nPOWER_SUPPLY_STATUS={status}\nPOWER_SUPPLY_POWER_NOW=9000000\n"
    (folder / "uevent").write_text(text)


def test_where_nothing_is_energy_is_modelled_and_says_from_what(bare, clock):
    choice = find_meter("auto", clock, bare)
    assert (choice.meter, choice.source, choice.passed) == (None, "modelled", ())
    assert choice.description(POWER) == "from 2 W idle, 8 W under load (maker), ± 40%"


def test_the_best_that_is_here_is_taken(bare, clock):
    battery(bare)
    assert find_meter("auto", clock, bare).source == "battery"
    rapl(bare)
    choice = find_meter("auto", clock, bare)
    assert choice.source == "rapl"
    assert choice.description(POWER) == "processor packages and their memory, ± 5%"


def test_one_that_cannot_be_read_is_passed_over_with_its_reason(bare, clock):
    battery(bare)
    (rapl(bare) / "energy_uj").write_text("broken")
    choice = find_meter("auto", clock, bare)
    assert choice.source == "battery"
    [why] = choice.passed
    assert why.startswith("rapl: zone intel-rapl:0 says 'broken'")


@pytest.mark.parametrize("error", [OSError("hwmon3 is gone"), ValueError("1.2.3")])
def test_one_that_goes_away_as_it_is_looked_at_ends_nothing(bare, clock, monkeypatch, error):
    def gone(*_):
        raise error

    monkeypatch.setitem(HERE, "jetson", gone)
    assert find_meter("auto", clock, bare).passed == (f"jetson: {error}",)
    with pytest.raises(MeterError, match=f"--meter jetson: {error}"):
        find_meter("jetson", clock, bare)


def test_a_battery_on_its_charger_is_passed_over(bare, clock):
    battery(bare, status="Full")
    choice = find_meter("auto", clock, bare)
    assert choice.source == "modelled"
    assert choice.passed == ("battery: the battery is full: what the device uses comes from its charger",)


def test_the_one_that_is_asked_for_is_taken_or_refused(bare, clock):
    rapl(bare)
    battery(bare)
    assert find_meter("battery", clock, bare).source == "battery"
    assert find_meter("modelled", clock, bare).meter is None
    assert find_meter("command:/bin/echo 3", clock, bare).source == "command"
    with pytest.raises(MeterError, match="--meter jetson: no INA3221 below"):
        find_meter("jetson", clock, bare)
    with pytest.raises(MeterError, match="--meter ina219:7: no .*i2c-7"):
        find_meter("ina219:7", clock, bare)


def test_what_is_no_meter_is_told_which_there_are(bare, clock):
    with pytest.raises(MeterError, match="--meter sundial: expected one of auto, jetson, pmic"):
        find_meter("sundial", clock, bare)


def test_every_meter_that_is_looked_for_can_be_asked_for():
    assert set(HERE) <= set(METER_OPTIONS)
