import os

import pytest

from device_runtime.device.energy import boards
from device_runtime.device.energy.boards import Zone, counts, grown, zone
from device_runtime.device.energy.meter import MeterError, NoMeter

RANGE = 262143328850
# As `powercap-info` shows an i5-13500: package-0 at 65997277274 uJ of a range of 262143328850, of it core
# 48265700414 (a public repository's notes on its benchmark machine).
PACKAGE, CORE = 65997277274, 48265700414
# An AMD EPYC 7543 has the range 65532610987 (scaphandre's source).
EPYC_RANGE = 65532610987


@pytest.fixture
def machine(tmp_path):
    """/sys/class/powercap of a machine with one package, its cores, its memory, and the platform."""
    zones = {
        "intel-rapl:0": ("package-0", PACKAGE, RANGE),
        "intel-rapl:0:0": ("core", CORE, RANGE),
        "intel-rapl:0:1": ("dram", 1_000_000, 65712999613),
        "intel-rapl:1": ("psys", 117870082040, RANGE),
    }
    for folder, (name, energy, most) in zones.items():
        path = tmp_path / boards.FOLDER / folder
        path.mkdir(parents=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{energy}\n")
        (path / "max_energy_range_uj").write_text(f"{most}\n")
    (tmp_path / boards.FOLDER / "intel-rapl").mkdir()
    return tmp_path


def set_energy(machine, folder, microjoules):
    (machine / boards.FOLDER / folder / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_and_memory_count_and_what_is_part_of_them_does_not():
    assert [counts(name) for name in ("package-0", "package-1", "dram", "core", "uncore", "psys")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_joules_of_package_and_memory_are_added_up(machine, clock):
    meter = boards.rapl_meter(machine, clock)
    first = meter.read()
    set_energy(machine, "intel-rapl:0", PACKAGE + 12_500_000)
    set_energy(machine, "intel-rapl:0:0", CORE + 11_000_000)
    set_energy(machine, "intel-rapl:0:1", 3_500_000)
    assert meter.read().joules - first.joules == pytest.approx(12.5 + 2.5)
    meter.rest()


@pytest.mark.parametrize("most", [RANGE, EPYC_RANGE])
def test_a_counter_that_ran_over_goes_on_from_its_range(most):
    before, now = {"p": Zone(most - 3_000_000, most)}, {"p": Zone(4_000_000, most)}
    assert grown(before, now) == 7.0


def test_running_over_twice_between_readings_is_seen_twice(machine, clock):
    meter = boards.rapl_meter(machine, clock)
    first = meter.read()
    for energy in (RANGE - 1, 10, RANGE - 1, 10):
        set_energy(machine, "intel-rapl:0", energy)
        last = meter.read()
    meter.rest()
    assert last.joules - first.joules == pytest.approx((2 * RANGE - PACKAGE + 10) / 1e6)


def test_a_zone_that_is_no_number_is_named():
    with pytest.raises(MeterError, match="zone intel-rapl:0 says 'off'"):
        zone("intel-rapl:0", "off", str(RANGE))


def test_a_machine_without_it_has_no_such_meter(tmp_path, clock):
    with pytest.raises(NoMeter, match="no package below /sys/class/powercap"):
        boards.rapl_meter(tmp_path, clock)


def test_a_counter_that_may_not_be_read_says_what_to_do(machine, clock, monkeypatch):
    path = machine / boards.FOLDER / "intel-rapl:0" / "energy_uj"
    if os.geteuid() == 0:  # whom no mode keeps out
        read = type(path).read_text

        def refused(self, *arguments, **options):
            if self == path:
                raise PermissionError(13, "Permission denied")
            return read(self, *arguments, **options)

        monkeypatch.setattr(type(path), "read_text", refused)
    else:
        path.chmod(0)
    with pytest.raises(MeterError, match=r"may be read by root only: sudo chmod a\+r") as refused_error:
        boards.rapl_meter(machine, clock)
    assert not isinstance(refused_error.value, NoMeter)
