"""The memory that there is, in control groups of both versions."""

import psutil
import pytest

from device_runtime.profiles.measure import MIB, MachineMemory, available_memory


@pytest.fixture
def machine(monkeypatch):
    class Memory:
        total, available = 8000 * MIB, 5000 * MIB

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def own(tmp_path, text):
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_without_a_limit_it_is_the_machine_s(machine, tmp_path):
    assert available_memory(tmp_path, own(tmp_path, "0::/\n")) == MachineMemory(8000 * MIB, 5000 * MIB)
    group(tmp_path, memory__max="max", memory__current=5)
    assert available_memory(tmp_path, own(tmp_path, "0::/\n")) == MachineMemory(8000 * MIB, 5000 * MIB)


def test_version_2_what_can_be_reclaimed_is_free(machine, tmp_path):
    unit = tmp_path / "user.slice" / "pi.service"
    group(unit, memory__max=512 * MIB, memory__current=300 * MIB, memory__high="max")
    (unit / "memory.stat").write_text(f"anon 1\ninactive_file {100 * MIB}\nactive_file 5\n")
    memory = available_memory(tmp_path, own(tmp_path, "0::/user.slice/pi.service\n"))
    assert memory == MachineMemory(512 * MIB, 312 * MIB)


def test_version_2_the_tightest_group_above_counts_and_so_does_memory_high(machine, tmp_path):
    group(tmp_path / "a" / "b", memory__max=900 * MIB, memory__current=100 * MIB)
    group(tmp_path / "a", memory__max="max", memory__high=400 * MIB, memory__current=390 * MIB)
    assert available_memory(tmp_path, own(tmp_path, "0::/a/b\n")) == MachineMemory(400 * MIB, 10 * MIB)


def test_version_1_is_read_where_its_controller_is(machine, tmp_path):
    inside = tmp_path / "memory" / "docker" / "abc"
    group(inside, memory__limit_in_bytes=256 * MIB, memory__usage_in_bytes=200 * MIB)
    (inside / "memory.stat").write_text(f"total_inactive_file {50 * MIB}\n")
    group(tmp_path / "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=1)
    memory = available_memory(tmp_path, own(tmp_path, "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"))
    assert memory == MachineMemory(256 * MIB, 106 * MIB)


def test_a_path_that_leads_nowhere_in_a_container_is_that_of_its_own_root(machine, tmp_path):
    group(tmp_path, memory__max=256 * MIB, memory__current=56 * MIB)
    assert available_memory(
        tmp_path, own(tmp_path, "0::/../../system.slice/docker.scope\n")
    ) == MachineMemory(256 * MIB, 200 * MIB)


def test_a_group_over_its_limit_has_no_room_left(machine, tmp_path):
    group(tmp_path, memory__max=100 * MIB, memory__current=120 * MIB)
    assert available_memory(tmp_path, own(tmp_path, "0::/\n")).free == 0


def test_a_fiftieth_is_left_to_others_from_8_to_64_mib():
    assert [MachineMemory(total * MIB, 0).reserve // MIB for total in (100, 1000, 32_000)] == [8, 20, 64]
    assert MachineMemory(512 * MIB, 100 * MIB).usable == 100 * MIB - 512 * MIB // 50
    assert MachineMemory(512 * MIB, MIB).usable == 0


def test_this_machine_has_no_more_than_the_kernel_says():
    memory = available_memory()
    assert 0 < memory.free <= memory.total <= psutil.virtual_memory().total
