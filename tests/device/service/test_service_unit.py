"""A device as a service: the texts, the files, and what systemd itself says of the unit."""

import errno
import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from device_runtime.cli import main
from device_runtime.cli.on_device import service as cli_service
from device_runtime.device.errors import InstallError
from device_runtime.device.service import install, system_account
from device_runtime.device.service import install as installing
from device_runtime.device.service import uninstall as leaving
from device_runtime.device.service.install import ServiceCommand, device_service, unit

COMMAND = ("/opt/a b/bin/device-runtime", "join", "--config", "/x/100%/$HOME.toml")
LIMITED = ServiceCommand("kitchen-pi", COMMAND, Path("/srv"), 10, True, 50.0, 200_000_000)


def test_the_unit_has_absolute_paths_and_the_limits_of_the_policy():
    lines = unit(LIMITED).splitlines()
    assert 'ExecStart=:"/opt/a b/bin/device-runtime" "join" "--config" "/x/100%%/$HOME.toml"' in lines
    for line in (
        "WorkingDirectory=/srv", "Nice=10", "IOSchedulingClass=idle", "CPUQuota=50%", "MemoryMax=250000000",
        "Restart=on-failure", "OOMScoreAdjust=500", "OOMPolicy=continue", "WantedBy=default.target",
    ):  # fmt: skip
        assert line in lines


def test_without_limits_there_are_none_in_the_unit():
    text = unit(ServiceCommand("a", ("/bin/true",), Path("/")))
    assert not any(word in text for word in ("Nice", "IOSched", "CPUQuota", "MemoryMax"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path):
    program = tmp_path / "100% of $HOME" / "device-runtime"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    job = ServiceCommand("a", (str(program), "join"), tmp_path, 10, True, 50.0, 200_000_000)
    file = tmp_path / "device-runtime-a.service"
    file.write_text(unit(job))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(file)],
        capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert str(file) not in done.stderr
    assert "device-runtime-a.service" not in done.stderr, done.stderr


def test_a_user_unit_is_enabled_and_started_and_taken_away_again(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    service = device_service(LIMITED, os.environ)
    assert service.files[0].path == Path("/home/me/.config/systemd/user/device-runtime-kitchen-pi.service")
    assert service.start[-1] == ("systemctl", "--user", "restart", "device-runtime-kitchen-pi.service")
    assert service.stop == (("systemctl", "--user", "disable", "--now", "device-runtime-kitchen-pi.service"),)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/me")
    other = device_service(LIMITED, os.environ)
    assert other.files[0].path.parent == Path("/etc/me/systemd/user")


@pytest.mark.parametrize("sign", [{"TERMUX_VERSION": "0.118.0"}, {}])
def test_in_termux_it_is_a_runit_service_and_a_script_at_boot(tmp_path, sign):
    prefix, home = tmp_path / "com.termux" / "usr", tmp_path / "home"
    env = {"PREFIX": str(prefix), "HOME": str(home), **sign}
    assert installing.service_manager(env) == "termux"
    service = device_service(LIMITED, env, "termux")
    installing.put(service)
    run = prefix / "var/service/device-runtime-kitchen-pi/run"
    assert os.access(run, os.X_OK)
    assert run.read_text().splitlines() == [
        f"#!{prefix}/bin/sh",
        "cd /srv || exit 1",
        "exec nice -n 10 '/opt/a b/bin/device-runtime' join --config '/x/100%/$HOME.toml' 2>&1",
    ]
    assert subprocess.run(["sh", "-n", str(run)]).returncode == 0
    boot = home / ".termux/boot/device-runtime-kitchen-pi"
    assert "termux-wake-lock" in boot.read_text()
    assert (run.parent / "log" / "run").readlink() == prefix / "share/termux-services/svlogger"
    steps = list(installing.remove(service))
    assert any("sv-disable" in line for line in steps)
    assert not run.parent.exists()
    assert not boot.exists()


def test_a_service_is_put_started_found_and_removed_with_what_the_system_says(tmp_path, monkeypatch):
    """The commands of systemd are played by `sh`: this machine may have none that runs."""
    log = tmp_path / "log"
    fake = tmp_path / "bin" / "systemctl"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$2" != restart ] || [ ! -e {tmp_path}/broken ]\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in ("PREFIX", "TERMUX_VERSION"):
        monkeypatch.delenv(name, raising=False)
    service = device_service(LIMITED, os.environ)
    assert installing.installed_services("kitchen-pi") == []
    installing.put(service)
    installing.start(service)
    [installed] = installing.installed_services("kitchen-pi")
    (tmp_path / "broken").touch()
    with pytest.raises(InstallError, match="is written, but `systemctl --user restart"):
        installing.start(service)
    assert list(installing.remove(installed)) == []
    assert installing.installed_services("kitchen-pi") == []
    verbs = [line.split()[1] for line in log.read_text().splitlines()]
    assert verbs == ["daemon-reload", "enable", "restart"] * 2 + ["disable", "daemon-reload"]


def test_a_service_of_the_same_name_is_left_to_the_device_whose_settings_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PREFIX", "TERMUX_VERSION", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    installing.put(device_service(LIMITED, os.environ))
    own, other = tmp_path / "mine", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    (own / leaving.SETTINGS).write_text('name = "kitchen-pi"\n')
    list(leaving.stop("kitchen-pi", other))
    assert len(installing.installed_services("kitchen-pi")) == 1
    list(leaving.stop("kitchen-pi", own))
    assert installing.installed_services("kitchen-pi") == []


def test_a_command_that_is_installed_for_the_user_alone_is_found_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "local" / "device-runtime"), "join"])
    with pytest.raises(InstallError, match="install device-runtime in the environment"):
        installing.program()
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "device-runtime").touch()
    assert installing.program() == tmp_path / "local" / "device-runtime"


def test_a_command_that_is_not_installed_or_fails_is_said():
    assert installing.run_command(["no-such-program-anywhere"]) == "no-such-program-anywhere is not installed"
    assert installing.run_command(["sh", "-c", "echo no >&2; exit 3"]) == "no"
    assert installing.run_command(["sh", "-c", "exit 3"]) == "exit code 3"
    assert installing.run_command(["true"]) == ""
    assert install.title("a") == "device-runtime-a"


@pytest.fixture
def headless(tmp_path, monkeypatch):
    """A machine with systemd for a user `number`, with unit folders in tmp_path; returns what was run."""
    ran = []

    def machine(number, fails=""):
        booted = tmp_path / "run"
        booted.mkdir(exist_ok=True)
        manager = installing.service_manager
        monkeypatch.setattr(installing, "service_manager", lambda env: manager(env, booted))
        monkeypatch.setattr(os, "geteuid", lambda: number)
        monkeypatch.setattr(installing, "SYSTEM_UNITS", tmp_path / "system")
        monkeypatch.setattr(
            installing, "run_command", lambda words: ran.append(words) or (fails if fails else "")
        )
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        for name in ("PREFIX", "TERMUX_VERSION", "XDG_RUNTIME_DIR"):
            monkeypatch.delenv(name, raising=False)
        return ran

    (tmp_path / "samples").mkdir()
    return machine


def join(tmp_path, *more):
    words = ("mqtt://127.0.0.1:1", "--data", tmp_path / "samples", "--state", tmp_path / "pi", "--name", "pi")
    return main(["join", *map(str, (*words, *more)), "--service"])


def test_root_gets_a_unit_of_the_machine_which_needs_no_login(headless, tmp_path):
    ran = headless(0)
    assert join(tmp_path) == 0
    text = (tmp_path / "system" / "device-runtime-pi.service").read_text()
    assert "WantedBy=multi-user.target" in text
    assert f'"--config" "{tmp_path / "pi" / "device.toml"}"' in text
    assert ran[-1] == ("systemctl", "restart", "device-runtime-pi.service")
    assert main(["leave", "--state", str(tmp_path / "pi"), "--yes"]) == 0
    assert list((tmp_path / "system").iterdir()) == []


def test_a_user_without_a_bus_keeps_the_settings_and_is_told_what_works(headless, tmp_path, capsys):
    headless(1000, fails="Failed to connect to bus: No medium found")
    assert join(tmp_path) == 2
    output = capsys.readouterr().err
    assert "enable-linger" in output and "systemctl --user daemon-reload && " in output
    assert "restart device-runtime-pi.service" in output
    settings = tmp_path / "pi" / "device.toml"
    unit_file = tmp_path / "config/systemd/user/device-runtime-pi.service"
    assert f'"{settings}"' in unit_file.read_text()
    assert 'broker = "mqtt://127.0.0.1:1"' in settings.read_text()
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600


def test_without_systemd_the_settings_stay_and_the_command_is_named(headless, tmp_path, capsys):
    headless(0)
    (tmp_path / "run").rmdir()
    assert join(tmp_path) == 2
    output = capsys.readouterr().err
    assert f"join --config {tmp_path / 'pi' / 'device.toml'}" in output
    assert (tmp_path / "pi" / "device.toml").exists()


def test_another_url_replaces_the_settings_and_the_unit_of_an_earlier_version_goes(headless, tmp_path):
    headless(0)
    installing.put(device_service(ServiceCommand("pi", ("x",), Path("/")), os.environ, "user"))
    assert join(tmp_path) == 0
    assert join(tmp_path, "--unknown-allows") == 0
    assert not (tmp_path / "config/systemd/user/device-runtime-pi.service").exists()
    assert "unknown_allows = true" in (tmp_path / "pi" / "device.toml").read_text()
    assert [path.name for path in (tmp_path / "system").iterdir()] == ["device-runtime-pi.service"]


def test_a_unit_that_a_full_disk_does_not_take_leaves_the_one_before(headless, tmp_path, monkeypatch, capsys):
    headless(0)
    assert join(tmp_path) == 0
    unit_file = tmp_path / "system" / "device-runtime-pi.service"
    before = unit_file.read_text()
    settings = (tmp_path / "pi" / "device.toml").read_text()
    written = installing.replace_file

    def full(path, *more, **modes):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(installing, "replace_file", full)
    assert join(tmp_path, "--nice", "5") == 4
    assert "no space left on device: free some space" in capsys.readouterr().err
    assert unit_file.read_text() == before
    monkeypatch.setattr(installing, "replace_file", written)
    assert settings != (tmp_path / "pi" / "device.toml").read_text()  # the new ones, whole


def test_a_service_is_installed_without_a_home_where_the_folders_are_named(headless, tmp_path, monkeypatch):
    headless(0)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: (_ for _ in ()).throw(KeyError("no such user")))
    assert join(tmp_path) == 0
    assert (tmp_path / "system" / "device-runtime-pi.service").exists()


def test_a_user_without_a_home_is_told_what_to_set(headless, tmp_path, monkeypatch, capsys):
    headless(1000)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: (_ for _ in ()).throw(KeyError("no such user")))
    assert join(tmp_path) == 2
    assert "Set HOME or XDG_CONFIG_HOME" in capsys.readouterr().err
    assert (tmp_path / "pi" / "device.toml").exists()


def test_a_bus_that_the_login_did_not_tell_of_is_found(tmp_path):
    (tmp_path / str(os.geteuid()) / "systemd").mkdir(parents=True)
    address = f"XDG_RUNTIME_DIR={tmp_path / str(os.geteuid())}"
    assert installing._bus({}, tmp_path) == ("env", address)
    assert installing._bus({"XDG_RUNTIME_DIR": "/run/user/5"}, tmp_path) == ()
    assert installing._bus({}, tmp_path / "nowhere") == ()


@pytest.fixture
def machine(headless, tmp_path, monkeypatch):
    """A machine of root's with systemd, and without the account for devices yet; returns what was run."""
    ran = headless(0)
    for module in (cli_service, system_account):
        monkeypatch.setattr(module, "SYSTEM_STATE", tmp_path / "lib")
    monkeypatch.setattr(system_account, "exists", lambda: any(words[0] == "useradd" for words in ran))
    monkeypatch.setattr(system_account, "program_folders", lambda: ())
    (tmp_path / "samples").chmod(0o755)
    return ran


def join_system(tmp_path, *more):
    words = ("mqtt://pi:secret@127.0.0.1:1", "--data", tmp_path / "samples", "--system", *more)
    return main(["join", *map(str, words)])


def test_a_device_of_the_machine_has_an_account_of_its_own_and_leaves_nothing(machine, tmp_path, capsys):
    assert join_system(tmp_path) == 0
    folder, unit_file = tmp_path / "lib" / "pi", tmp_path / "system" / "device-runtime-pi.service"
    lines = unit_file.read_text().splitlines()
    account = system_account.SYSTEM_USER
    for line in (
        f"User={account}", "ProtectSystem=strict", "ProtectHome=tmpfs", "CapabilityBoundingSet=",
        "PrivateDevices=yes", f"ReadWritePaths={folder}", f"BindReadOnlyPaths={tmp_path / 'samples'}",
        "WantedBy=multi-user.target", f"WorkingDirectory={folder}",
    ):  # fmt: skip
        assert line in lines
    steps = [words[:2] for words in machine]
    assert steps[0] == ("useradd", "--system")
    assert machine[1] == ("chown", "-R", f"{account}:{account}", str(folder))
    assert [words[1] for words in steps[2:]] == ["daemon-reload", "enable", "restart"]
    output = capsys.readouterr().out
    assert f"/device-runtime leave --state {folder}" in output
    assert "sudo journalctl -u device-runtime-pi -f" in output
    assert "linger" not in output
    assert main(["leave", "--state", str(folder), "--yes"]) == 0
    assert machine[-1] == ("userdel", account)
    assert not unit_file.exists() and not folder.parent.exists()


def test_the_account_stays_while_another_device_of_the_machine_has_it(machine, tmp_path):
    for name in ("pi", "pi-2"):
        assert join_system(tmp_path, "--name", name) == 0
    assert [words[0] for words in machine].count("useradd") == 1
    assert main(["leave", "--state", str(tmp_path / "lib" / "pi"), "--yes"]) == 0
    assert "userdel" not in [words[0] for words in machine]
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["pi-2"]


def test_only_root_installs_for_the_machine(machine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert join_system(tmp_path) == 2
    assert "run it as root, with sudo" in capsys.readouterr().err
    assert not (tmp_path / "lib").exists()


def test_samples_that_the_account_cannot_read_are_said_before_anything_is_installed(
    machine, tmp_path, capsys
):
    (tmp_path / "samples" / "a.csv").write_text("1,2\n")
    (tmp_path / "samples" / "a.csv").chmod(0o600)
    assert join_system(tmp_path) == 2
    assert f"a.csv cannot be read by {system_account.SYSTEM_USER}" in capsys.readouterr().err
    assert machine == []


def test_a_way_that_is_closed_to_the_account_is_said_unless_the_service_has_a_mount_of_its_own(
    tmp_path, monkeypatch
):
    closed = tmp_path / "closed"
    (closed / "venv").mkdir(parents=True)
    closed.chmod(0o700)
    system_account.check_way(closed / "venv")  # in /tmp, as the tests' folder is
    monkeypatch.setattr(system_account, "HIDDEN", ())
    with pytest.raises(InstallError, match=f"{closed} is closed to .* by `chmod o\\+x {closed}`"):
        system_account.check_way(closed / "venv")


def test_samples_of_one_group_are_read_as_of_that_group(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("1,2\n")
    tmp_path.chmod(0o750)
    group = tmp_path.stat().st_gid or 4
    closed = os.stat_result((0o100640, 0, 0, 1, 0, group, 4, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path, **_: closed)
    assert system_account.reading_group(tmp_path / "a.csv") == grp.getgrgid(group).gr_name


def test_files_with_credentials_are_copied_into_the_folder_of_a_device_of_the_machine(machine, tmp_path):
    (tmp_path / "secret").write_text("secret")
    words = ("mqtt://pi@127.0.0.1:1", "--data", tmp_path / "samples", "--system")
    assert main(["join", *map(str, (*words, "--password-file", tmp_path / "secret"))]) == 0
    folder = tmp_path / "lib" / "pi"
    assert f'password_file = "{folder / "broker-password"}"' in (folder / "device.toml").read_text()
    assert (folder / "broker-password").read_text() == "secret"
    assert stat.S_IMODE((folder / "broker-password").stat().st_mode) == 0o600


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say_against_the_unit_of_the_machine(tmp_path):
    program = tmp_path / "bin" / "device-runtime"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "my photos").mkdir(mode=0o755)
    account = system_account.SystemAccount(tmp_path, (tmp_path / "my photos",), ("video",))
    job = ServiceCommand("a", (str(program), "join"), tmp_path, 10, True, 50.0, 200_000_000, account)
    file = tmp_path / "device-runtime-a.service"
    file.write_text(unit(job, system=True))
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True)
    assert "device-runtime-a.service" not in done.stderr, done.stderr
