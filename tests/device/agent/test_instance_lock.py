"""The lock, the pause by hand, the rules as they are kept, and priority, in processes that really are."""

import errno
import fcntl
import os
import subprocess
import sys
from datetime import datetime

import pytest

from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.cli import main
from device_runtime.device.agent import instance as guest
from device_runtime.device.connection import connecting
from device_runtime.device.errors import InUse, PolicyError
from device_runtime.device.policy import work_gate as owner
from device_runtime.device.policy.rules import DayWindow, Policy
from device_runtime.device.policy.work_gate import OwnerRules, ProcessPriority
from device_runtime.device.service import uninstall as leaving


def test_one_device_is_one_process_and_a_lock_ends_with_it(tmp_path):
    assert guest.process(tmp_path) is None
    with guest.folder_lock(tmp_path):
        assert guest.process(tmp_path) == os.getpid()
        with pytest.raises(InUse, match=f"in use by process {os.getpid()}"), guest.folder_lock(tmp_path):
            pass
    assert guest.process(tmp_path) is None
    with guest.folder_lock(tmp_path):
        assert guest.process(tmp_path) == os.getpid()


def test_a_lock_file_without_a_process_id_is_repaired_and_while_it_is_locked_nobody_takes_it_for_free(
    tmp_path,
):
    lock = tmp_path / guest.LOCK
    lock.write_text("29883\n29884\n" + "x" * 40)
    with guest.folder_lock(tmp_path):
        assert lock.read_text().split() == [str(os.getpid())]
        lock.write_text("")
        with pytest.raises(InUse, match="in use by a process, but .*lock does not say which"):
            guest.process(tmp_path)


def test_a_full_disk_and_a_file_system_without_locks_keep_no_device_from_its_work(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(os, "pwrite", full)
    with guest.folder_lock(tmp_path):
        pass


EARLY = """
import os, signal, sys
from pathlib import Path
from device_runtime.device.policy import work_gate as owner
from device_runtime.cli import main
from device_runtime.cli.on_device import join
folder = Path(sys.argv[1])
join.place = lambda *_: os.kill(os.getpid(), signal.SIGUSR1) or print(owner.paused(folder), flush=True)
main(["join", "mqtt://127.0.0.1:1", "--data", sys.argv[1], "--state", sys.argv[1]])
"""


def test_a_signal_that_comes_before_the_device_is_ready_pauses_it(tmp_path):
    """A slow meter may be looked for first; whoever has not heard of SIGUSR1 dies of it."""
    with subprocess.Popen(
        [sys.executable, "-c", EARLY, tmp_path], stdout=subprocess.PIPE, text=True
    ) as joined:
        assert joined.stdout.readline().startswith("by hand, since")
        joined.kill()


def test_a_pause_by_hand_holds_until_it_is_ended_in_whatever_process(tmp_path):
    rules = OwnerRules(Policy(), tmp_path, lambda: (0, 0))
    assert rules.verdict().allows
    owner.pause(tmp_path)
    assert not rules.verdict().allows
    assert rules.verdict().reasons[0].startswith(f"by hand, since {datetime.now():%Y-}")
    assert not OwnerRules(Policy(), tmp_path, lambda: (0, 0)).verdict().allows
    owner.resume(tmp_path)
    owner.resume(tmp_path)
    assert rules.verdict().allows


def test_the_link_s_bytes_count_against_the_limit_of_the_day(tmp_path):
    counted = [600, 300]
    rules = OwnerRules(Policy(daily_bytes=1000), tmp_path, lambda: (counted[0], counted[1]))
    assert rules.verdict().allows
    counted[1] = 400
    verdict = rules.verdict()
    assert (verdict.allows, verdict.quiet) == (False, True)


def test_the_rules_of_the_last_join_are_kept_for_whoever_asks(tmp_path):
    policy = Policy(battery_above=40.0, windows=(DayWindow.of("22:00-06:30"),), daily_bytes=5)
    assert owner.kept_policy(tmp_path) is None
    owner.keep(policy, tmp_path)
    assert owner.kept_policy(tmp_path) == policy
    (tmp_path / owner.POLICY).write_text("{")
    with pytest.raises(PolicyError, match=r"policy\.json cannot be read"):
        owner.kept_policy(tmp_path)


MANNERS = """
import os, psutil, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()  # one that is there before, as numpy's
from device_runtime.device.policy.work_gate import ProcessPriority
ProcessPriority(nice=7, idle_io=True, cores=1).apply()
print(os.nice(0), int(psutil.Process().ionice().ioclass), len(os.sched_getaffinity(0)))
print(open("/proc/self/oom_score_adj").read().strip())
threads = list(map(int, os.listdir("/proc/self/task")))
print(len(threads) > 1, {os.getpriority(os.PRIO_PROCESS, one) for one in threads},
      {len(os.sched_getaffinity(one)) for one in threads})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's")
def test_a_polite_process_is_behind_others_on_one_core_and_the_first_to_go():
    done = subprocess.run([sys.executable, "-c", MANNERS], capture_output=True, text=True, check=True)
    priority, oom, threads = done.stdout.splitlines()
    assert threads == "True {7} {1}"
    assert priority == "7 3 1"  # 3: IOPRIO_CLASS_IDLE
    assert int(oom) >= 500


def test_what_the_system_does_not_allow_is_said_and_left(caplog, monkeypatch, tmp_path):
    def refused(*_):
        raise PermissionError(1, "not allowed")

    monkeypatch.setattr(os, "setpriority", refused)
    ProcessPriority(nice=3).apply(tmp_path / "nowhere")
    assert "--nice is not possible here" in caplog.text


def test_what_is_removed_is_named_and_samples_and_strangers_stay(tmp_path):
    folder = tmp_path / "pi"
    (folder / "outbox").mkdir(parents=True)
    (folder / "outbox" / "00000001.msg").write_bytes(b"123")
    (folder / "bundles" / "abc").mkdir(parents=True)
    (folder / "samples.npz").write_bytes(b"mine")
    assert leaving.unreceipted(folder) == 1
    assert set(leaving.parts(folder)) == {folder / "outbox", folder / "bundles"}
    assert set(leaving.parts(folder, keep_outbox=True)) == {folder / "bundles"}
    assert leaving.size(folder / "outbox") == 3
    assert leaving.remove(folder, keep_outbox=False) == folder
    assert [path.name for path in folder.iterdir()] == ["samples.npz"]
    (folder / "samples.npz").unlink()
    assert leaving.remove(folder, keep_outbox=False) is None
    assert not folder.exists()


def test_files_cut_off_as_they_were_written_and_links_to_another_disk_go_too(tmp_path):
    folder, disk = tmp_path / "pi", tmp_path / "disk"
    folder.mkdir()
    disk.mkdir()
    (disk / "mine").write_bytes(b"mine")
    (folder / "bundles").symlink_to(disk)
    (folder / "blobs").symlink_to(tmp_path / "gone")
    for cut_off in (".paused", ".traffic.json", ".enrolment.json.0a1b2c3d"):
        (folder / cut_off).write_bytes(b"")
    assert leaving.remove(folder, keep_outbox=False) is None
    assert not folder.exists()
    assert (disk / "mine").exists()


def test_what_a_device_makes_until_it_has_stopped_is_kept_until_its_receipt(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "pi"
    (folder / "outbox").mkdir(parents=True)

    def stopped(*_):
        (folder / "outbox" / "00000001.msg").write_bytes(b"123")
        return iter(["stopped process 5"])

    monkeypatch.setattr(leaving, "stop", stopped)
    assert main(["leave", "--state", str(folder), "--broker", "mqtt://127.0.0.1:1", "--yes"]) == 0
    output = capsys.readouterr().out
    assert f"kept in {folder}: outbox" in output
    assert f"without a receipt: 1; `device-runtime leave --state {folder} --force` loses them" in output
    assert leaving.unreceipted(folder) == 1


def test_leaving_without_the_broker_s_url_says_before_and_after_that_no_goodbye_is_said(tmp_path, capsys):
    (tmp_path / "pi" / "outbox").mkdir(parents=True)
    assert main(["leave", "--state", str(tmp_path / "pi"), "--yes"]) == 0
    output = capsys.readouterr().out
    assert "Its broker is not known, so no goodbye will be said: to say one, give --broker URL." in output
    assert output.splitlines()[-2:] == ["no goodbye was said", f"removed {tmp_path / 'pi'}"]


def test_nothing_is_removed_from_a_folder_that_is_no_device_s(tmp_path):
    (tmp_path / "personal").mkdir()
    (tmp_path / "personal" / "letter").write_text("dear")
    assert main(["leave", "--state", str(tmp_path), "--yes", "--force"]) == 2
    assert main(["pause", "--state", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["personal"]
    assert (tmp_path / "personal" / "letter").exists()


@pytest.mark.parametrize("enrols", [True, False])
def test_a_device_does_not_move_in_where_others_have_something(tmp_path, capsys, enrols):
    (tmp_path / "personal").mkdir()
    token = Enrolment("mqtts://192.0.2.7", "pi", "secret", b"der", bytes(32), 5).token
    how = ["--enrol", token] if enrols else ["mqtt://127.0.0.1:1", "--data", str(tmp_path)]
    assert main(["join", *how, "--state", str(tmp_path)]) == 2
    assert "has other things in it, as personal" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["personal"]


def test_a_device_s_folder_is_its_owner_s_alone(tmp_path):
    connecting.claim(tmp_path / "of" / "pi")
    assert (tmp_path / "of" / "pi").stat().st_mode & 0o777 == 0o700
    connecting.claim(tmp_path / "of" / "pi")
    with guest.folder_lock(tmp_path / "of" / "pi"):
        connecting.claim(tmp_path / "of" / "pi")


def test_the_name_is_that_of_the_settings_then_of_the_folder(tmp_path):
    assert leaving.name_in(tmp_path / "pi") == "pi"
    (tmp_path / "device.toml").write_text('data = "x"\nname = "kitchen"\n')
    assert leaving.name_in(tmp_path) == "kitchen"
