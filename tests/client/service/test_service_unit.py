"""A device as a service: the texts, the files, and what systemd itself says of the unit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from device_runtime.client.errors import InstallError
from device_runtime.client.service import install
from device_runtime.client.service import install as installing
from device_runtime.client.service import uninstall as leaving
from device_runtime.client.service.install import ServiceCommand, device_service, unit

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
    made = tmp_path / "device-runtime-a.service"
    made.write_text(unit(job))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(made)],
        capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert str(made) not in done.stderr
    assert "device-runtime-a.service" not in done.stderr, done.stderr


def test_a_user_unit_is_enabled_and_started_and_taken_away_again():
    made = device_service(LIMITED, {"HOME": "/home/me"})
    assert made.files[0].path == Path("/home/me/.config/systemd/user/device-runtime-kitchen-pi.service")
    assert made.start[-1] == ("systemctl", "--user", "restart", "device-runtime-kitchen-pi.service")
    assert made.stop == (("systemctl", "--user", "disable", "--now", "device-runtime-kitchen-pi.service"),)
    other = device_service(LIMITED, {"HOME": "/home/me", "XDG_CONFIG_HOME": "/etc/me"})
    assert other.files[0].path.parent == Path("/etc/me/systemd/user")


@pytest.mark.parametrize("sign", [{"TERMUX_VERSION": "0.118.0"}, {}])
def test_in_termux_it_is_a_runit_service_and_a_script_at_boot(tmp_path, sign):
    prefix, home = tmp_path / "com.termux" / "usr", tmp_path / "home"
    made = device_service(LIMITED, {"PREFIX": str(prefix), "HOME": str(home), **sign})
    installing.put(made)
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
    told = list(installing.remove(made))
    assert any("sv-disable" in line for line in told)
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
    made = device_service(LIMITED, os.environ)
    assert installing.installed_service("kitchen-pi") is None
    installing.put(made)
    installing.start(made)
    found = installing.installed_service("kitchen-pi")
    (tmp_path / "broken").touch()
    with pytest.raises(InstallError, match="is written, but `systemctl --user restart"):
        installing.start(made)
    assert list(installing.remove(found)) == []
    assert installing.installed_service("kitchen-pi") is None
    verbs = [line.split()[1] for line in log.read_text().splitlines()]
    assert verbs == ["daemon-reload", "enable", "restart"] * 2 + ["disable", "daemon-reload"]


def test_a_service_of_the_same_name_is_left_to_the_device_whose_settings_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PREFIX", "TERMUX_VERSION", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    installing.put(device_service(LIMITED, os.environ))
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
    (mine / leaving.SETTINGS).write_text('name = "kitchen-pi"\n')
    list(leaving.stop("kitchen-pi", other))
    assert installing.installed_service("kitchen-pi") is not None
    list(leaving.stop("kitchen-pi", mine))
    assert installing.installed_service("kitchen-pi") is None


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
