import shlex
import sys

import pytest

from device_runtime.device.energy import command
from device_runtime.device.energy.meter import MeterError


def program(tmp_path, text):
    """A command line that prints what the file `said` says, as it is then."""
    (tmp_path / "said").write_text(text)
    return shlex.join([sys.executable, "-c", f"print(open({str(tmp_path / 'said')!r}).read())"])


def test_the_last_line_that_a_command_prints_is_its_figure():
    assert command.last_line("# warming up\n3\n12.5 W\n\n").value == 12.5
    with pytest.raises(MeterError, match="nothing was printed: expected command:PROGRAM"):
        command.last_line("\n")


def test_watts_are_sampled(tmp_path, clock):
    meter = command.command_meter(program(tmp_path, "4.5"), clock)
    first = meter.read()
    clock.now = 1.0
    assert meter.read().joules - first.joules == 4.5
    meter.rest()
    assert meter.about is command.POWER


def test_joules_are_a_counter(tmp_path, clock):
    line = program(tmp_path, "1 kJ")
    meter = command.command_meter(line, clock)
    first = meter.read()
    program(tmp_path, "1.025 kJ")
    assert meter.read().joules - first.joules == pytest.approx(25.0)
    meter.rest()


def test_a_command_that_changes_its_mind_is_not_believed(tmp_path, clock):
    meter = command.command_meter(program(tmp_path, "3 W"), clock)
    program(tmp_path, "3 J")
    with pytest.raises(MeterError, match="prints power at one time, energy at another"):
        meter.read()
    meter.rest()


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "expected command:PROGRAM"),
        ("no-such-program-anywhere", "no-such-program-anywhere: .*No such file"),
        ("false", "false ended with 1: nothing said"),
        ("echo much", "'much' is no power or energy"),
        ("echo 'never ended", "No closing quotation"),
    ],
)
def test_a_command_that_is_no_meter_is_refused_with_the_reason(line, message, clock):
    with pytest.raises(MeterError, match=message):
        command.command_meter(line, clock)
