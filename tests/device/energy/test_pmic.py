import os

import pytest

from device_runtime.device.energy import boards
from device_runtime.device.energy.meter import MeterError, NoMeter

# `vcgencmd pmic_read_adc` on a busy Raspberry Pi 5, as printed in the README of github.com/jfikar/RPi5-power.
BUSY = """\
 3V7_WL_SW_A current(0)=0.00000000A
   3V3_SYS_A current(1)=0.06245952A
   1V8_SYS_A current(2)=0.16102850A
  DDR_VDD2_A current(3)=0.00780744A
  DDR_VDDQ_A current(4)=0.00000000A
   1V1_SYS_A current(5)=0.17566740A
    0V8_SW_A current(6)=0.32791250A
  VDD_CORE_A current(7)=10.87674000A
   3V3_DAC_A current(17)=0.00036630A
   3V3_ADC_A current(18)=0.00042735A
   0V8_AON_A current(16)=0.00579975A
      HDMI_A current(22)=0.01367520A
 3V7_WL_SW_V volt(8)=3.79999600V
   3V3_SYS_V volt(9)=3.30632200V
   1V8_SYS_V volt(10)=1.79828900V
  DDR_VDD2_V volt(11)=1.10292900V
  DDR_VDDQ_V volt(12)=0.60476130V
   1V1_SYS_V volt(13)=1.10439400V
    0V8_SW_V volt(14)=0.80256330V
  VDD_CORE_V volt(15)=0.89745940V
   3V3_DAC_V volt(20)=3.30494200V
   3V3_ADC_V volt(21)=3.30219400V
   0V8_AON_V volt(19)=0.79736190V
      HDMI_V volt(23)=5.07056000V
     EXT5V_V volt(24)=5.06788000V
      BATT_V volt(25)=3.01110800V
"""


def test_currents_are_paired_with_voltages_by_the_rail_s_name():
    watts = boards.pmic_rails(BUSY)
    assert len(watts) == 12
    assert watts["VDD_CORE"] == pytest.approx(10.87674 * 0.8974594)
    assert watts["HDMI"] == pytest.approx(0.0136752 * 5.07056)
    assert not {"EXT5V", "BATT"} & set(watts)


def test_the_board_is_its_rails_and_what_is_lost_on_the_way():
    """10.8 W of rails, most of it the cores: about 12.9 W at the plug."""
    rails = sum(boards.pmic_rails(BUSY).values())
    assert rails == pytest.approx(10.8, abs=0.05)
    assert boards.board(BUSY) == pytest.approx(1.1327 * rails + 0.6444)


def test_a_current_without_its_voltage_is_left_out():
    text = BUSY + "    NO_VOLT_A current(9)=0.50000000A\n"
    assert boards.pmic_rails(text) == boards.pmic_rails(BUSY)


@pytest.mark.parametrize(
    "text", ["", 'error=1 error_msg="Command not registered"\n', "EXT5V_V volt(24)=5.1V\n"]
)
def test_what_has_no_rail_is_shown(text):
    with pytest.raises(MeterError, match="vcgencmd pmic_read_adc says"):
        boards.pmic_rails(text)


def pretend(tmp_path, monkeypatch, text, model="Raspberry Pi 5 Model B Rev 1.0\x00"):
    """A machine of this model whose vcgencmd prints this text."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "text").write_text(text)
    (programs / "vcgencmd").write_text(f'#!/bin/sh\n[ "$1" = pmic_read_adc ] && cat {tmp_path / "text"}\n')
    (programs / "vcgencmd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "proc/device-tree/model"
    path.parent.mkdir(parents=True)
    path.write_text(model)


def test_a_pi_5_is_found_and_its_program_asked(tmp_path, clock, monkeypatch):
    pretend(tmp_path, monkeypatch, BUSY)
    meter = boards.pmic_meter(tmp_path, clock)
    first = meter.read()
    clock.now = 1.0
    assert meter.read().joules - first.joules == pytest.approx(boards.board(BUSY))
    meter.rest()


def test_a_pi_4_has_no_such_meter(tmp_path, clock, monkeypatch):
    pretend(tmp_path, monkeypatch, BUSY, model="Raspberry Pi 4 Model B Rev 1.1\x00")
    with pytest.raises(NoMeter):
        boards.pmic_meter(tmp_path, clock)


def test_a_program_that_fails_is_quoted(tmp_path, clock, monkeypatch):
    pretend(tmp_path, monkeypatch, BUSY)
    (tmp_path / "bin/vcgencmd").write_text("#!/bin/sh\necho VCHI initialization failed >&2\nexit 255\n")
    with pytest.raises(MeterError, match="pmic_read_adc ended with 255: VCHI initialization failed"):
        boards.pmic_meter(tmp_path, clock)
