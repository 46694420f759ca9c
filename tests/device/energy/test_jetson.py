import pytest

from device_runtime.device.energy import boards
from device_runtime.device.energy.meter import MeterError, NoMeter

# The files are those that `find .../ina3221/1-0040 -type f` lists on an AGX Orin, in1 to in3 with labels, in7
# "sum of shunt voltages", and channels that are off and give "Input/output error"
# (github.com/alumet-dev/alumet/issues/212, github.com/rbonghi/jetson_stats/issues/428). The figures are of a
# tegrastats line of that board, "VDD_GPU_SOC 5139mW VDD_CPU_CV 3268mW VIN_SYS_5V0 5500mW" (tests of
# jetson_stats), at voltages that give them.
AGX_ORIN = {
    "in1_label": "VDD_GPU_SOC\n", "in1_input": "19032\n", "curr1_input": "270\n",
    "in2_label": "VDD_CPU_CV\n", "in2_input": "19000\n", "curr2_input": "172\n",
    "in3_label": "VIN_SYS_5V0\n", "in3_input": "5000\n", "curr3_input": "1100\n",
    "in4_input": "540\n", "in5_input": "344\n", "in6_input": "2200\n",
    "in7_label": "sum of shunt voltages\n", "in7_input": "3084\n",
}  # fmt: skip
AGX_ORIN_SECOND = {"in2_label": "VDDQ_VDD2_1V8AO\n", "in2_input": "5000\n", "curr2_input": "200\n"}
# The older driver's files on a Nano: rail POM_5V_IN at 2875 mW (a public collector's tests).
NANO = {
    "rail_name_0": "POM_5V_IN\n", "in_power0_input": "2875\n",
    "rail_name_1": "POM_5V_GPU\n", "in_power1_input": "82\n",
    "rail_name_2": "POM_5V_CPU\n", "in_power2_input": "617\n",
}  # fmt: skip


def write(folder, files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_the_newer_driver_s_rails_are_voltage_times_current():
    watts = boards.jetson_rails(AGX_ORIN)
    assert watts == pytest.approx({"VDD_GPU_SOC": 5.139, "VDD_CPU_CV": 3.268, "VIN_SYS_5V0": 5.5}, rel=1e-3)


def test_the_older_driver_tells_power():
    assert boards.jetson_rails(NANO) == {"POM_5V_IN": 2.875, "POM_5V_GPU": 0.082, "POM_5V_CPU": 0.617}


def test_the_older_driver_without_power_tells_voltage_and_current():
    files = {"rail_name_0": "VDD_SYS_GPU", "in_voltage0_input": "730", "in_current0_input": "180"}
    assert boards.jetson_rails(files) == pytest.approx({"VDD_SYS_GPU": 0.1314})


def test_the_whole_is_the_input_where_it_is_measured_and_else_the_rails_that_make_it_up():
    assert boards.whole(boards.jetson_rails(NANO)) == 2.875
    everything = boards.jetson_rails(AGX_ORIN) | boards.jetson_rails(AGX_ORIN_SECOND)
    assert boards.whole(everything) == pytest.approx(5.139 + 3.268 + 5.5, rel=1e-3)
    assert boards.whole({"VDD_IN": 7.0, "VDD_MUX": 2.0, "VDD_CPU": 1.0}) == 9.0


def test_rails_of_which_the_whole_is_not_known_are_named():
    with pytest.raises(MeterError, match="rails VDD_CPU, VDD_X: which of them are the whole board"):
        boards.whole({"VDD_CPU": 1.0, "VDD_X": 1.0})


def test_a_channel_that_is_off_is_left_out():
    assert boards.jetson_rails({"in1_label": "VDD_IN", "in1_input": "5000"}) == {}
    assert boards.jetson_rails({"rail_name_0": "POM_5V_IN", "in_power0_input": "garbage"}) == {}


@pytest.mark.parametrize(
    "folder, files, watts",
    [
        ("ina3221/1-0040/hwmon/hwmon3", AGX_ORIN, 13.907),
        ("ina3221x/6-0040/iio:device0", NANO, 2.875),
        ("ina3221x/6-0040/iio_device", NANO, 2.875),
    ],
)
def test_each_layout_is_found_and_integrated(tmp_path, clock, folder, files, watts):
    write(tmp_path / boards.DRIVERS / folder, files)
    meter = boards.jetson_meter(tmp_path, clock)
    first = meter.read()
    clock.now = 0.3
    assert meter.read().joules - first.joules == pytest.approx(0.3 * watts, rel=1e-3)
    meter.rest()


def test_two_monitors_are_taken_together(tmp_path, clock):
    write(tmp_path / boards.DRIVERS / "ina3221/1-0040/hwmon/hwmon3", AGX_ORIN)
    write(tmp_path / boards.DRIVERS / "ina3221/1-0041/hwmon/hwmon4", AGX_ORIN_SECOND)
    assert boards.jetson_meter(tmp_path, clock).about.source == "jetson"


def test_another_board_has_no_such_meter(tmp_path, clock):
    with pytest.raises(NoMeter):
        boards.jetson_meter(tmp_path, clock)
