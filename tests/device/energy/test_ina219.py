import pytest

from device_runtime.device.energy import boards
from device_runtime.device.energy.boards import Wiring, ina219_watts
from device_runtime.device.energy.meter import MeterError, NoMeter

# The words of the examples in Texas Instruments' data sheet SBOS448G: a shunt voltage register of 0x8300 is
# -320 mV, a bus voltage register of 0x5D98 is 11.98 V.


def test_the_data_sheet_s_examples():
    """20 mV over 2 milliohms are 10 A, at 11.98 V."""
    shunt = (2000).to_bytes(2, "big")
    assert ina219_watts(shunt, bytes.fromhex("5D98"), 0.002) == pytest.approx(119.8, rel=1e-3)


def test_current_has_a_sign_and_a_sensor_that_is_the_other_way_round_measures_the_same():
    bus = bytes.fromhex("5D98")
    assert ina219_watts(bytes.fromhex("8300"), bus, 0.1) == pytest.approx(3.2 * 11.98, rel=1e-3)
    assert ina219_watts((32000).to_bytes(2, "big"), bus, 0.1) == pytest.approx(3.2 * 11.98, rel=1e-3)


def test_an_overflow_is_no_figure():
    with pytest.raises(MeterError, match="more current than it can tell through 0.1 ohms"):
        ina219_watts(bytes(2), (0x5D98 | 1).to_bytes(2, "big"), 0.1)


def test_half_a_word_is_no_word():
    with pytest.raises(MeterError, match="registers of 1 and 2 bytes"):
        ina219_watts(bytes(1), bytes(2), 0.1)


def test_the_wiring_is_as_usual_where_it_is_not_said():
    assert Wiring.of("") == Wiring(1, 0x40, 0.1)
    assert Wiring.of("3") == Wiring(3, 0x40, 0.1)
    assert Wiring.of("0, 0x45, 0.01") == Wiring(0, 0x45, 0.01)


@pytest.mark.parametrize("text", ["one", "1,0x40,0.1,9", "1,0x99", "1,0x40,0", "1,0x40,-1"])
def test_a_wiring_that_cannot_be_is_refused(text):
    with pytest.raises(MeterError, match="expected ina219|an address is"):
        Wiring.of(text)


def test_a_machine_without_the_bus_has_no_such_meter(tmp_path, clock):
    with pytest.raises(NoMeter, match="i2c-1: is I2C switched on"):
        boards.ina219_meter(Wiring(), tmp_path, clock)


def test_what_is_no_i2c_bus_is_named_with_the_address(tmp_path, clock):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/i2c-1").write_bytes(b"")
    with pytest.raises(MeterError, match="i2c-1, address 0x40: Inappropriate ioctl"):
        boards.ina219_meter(Wiring(), tmp_path, clock)
