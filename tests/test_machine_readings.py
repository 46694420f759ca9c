"""Figures of the machine are read where the system denies them: nothing raises, and values are cautious."""

import os
import resource
import subprocess
import sys

import psutil
import pytest

from device_runtime import machine_readings as readings
from device_runtime.profiles.measure import available_memory, usable_cores

DENIALS = [
    psutil.AccessDenied(),
    psutil.NoSuchProcess(1),
    PermissionError(13, "Permission denied", "/proc/stat"),
    FileNotFoundError(2, "No such file or directory", "/proc/meminfo"),
    ValueError("could not parse"),
    RuntimeError("no such thing"),
    NotImplementedError("platform not supported"),
    KeyError(b"MemTotal:"),
]


@pytest.fixture(params=DENIALS, ids=lambda error: type(error).__name__)
def denied(request, monkeypatch):
    """A system in which each call of psutil fails."""

    def deny(*_args, **_more):
        raise request.param

    for name in ("virtual_memory", "cpu_count", "Process", "sensors_battery", "sensors_temperatures"):
        monkeypatch.setattr(psutil, name, deny, raising=False)
    readings._process.cache_clear()
    readings._say_once.cache_clear()
    yield request.param
    readings._process.cache_clear()


def test_memory_and_cores_are_cautious_where_they_are_hidden(denied, caplog):
    total, free = readings.machine_memory()
    assert 0 < free <= total
    size = readings.resident_bytes()
    assert 10 * 2**20 < size <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert readings.core_count(physical=True) >= 1
    assert readings.own_cpu_s() > 0
    assert available_memory().total <= total
    for _ in range(3):
        readings.machine_memory()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == 4  # once for each figure
    assert all("cannot be read here" in line for line in lines)


def test_sensors_that_are_hidden_say_so(denied):
    with pytest.raises(readings.SensorDenied):
        readings.hottest_celsius()
    if isinstance(denied, FileNotFoundError):  # this is how psutil says that there is none
        assert readings.battery() is None
    else:
        with pytest.raises(readings.SensorDenied):
            readings.battery()
    with pytest.raises(OSError):
        readings.use_idle_disk()


def test_a_kernel_that_says_nothing_has_little_memory(denied, monkeypatch):
    def unknown(_name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert readings.machine_memory() == (readings.ASSUMED_TOTAL, readings.ASSUMED_FREE)


def test_a_load_that_the_system_hides_is_not_known(monkeypatch):
    assert readings.load_per_core() >= 0

    def unobtainable():
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", unobtainable)
    assert readings.load_per_core() is None


def test_cores_are_counted_where_the_affinity_may_not_be_asked_for(monkeypatch):
    def denied(_number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", denied)
    assert usable_cores() >= 1


def test_a_limit_on_the_address_space_is_a_limit_on_memory():
    program = (
        "from device_runtime.profiles.measure import available_memory as a; m = a(); print(m.total, m.free)"
    )
    limit = 2 * 2**30
    output = subprocess.run(
        [sys.executable, "-c", f"import resource; resource.setrlimit(9, ({limit}, {limit})); {program}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    total, free = map(int, output.split())
    assert total <= limit
    assert free < limit
