"""Programs and processes that end when the one that started them is killed."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from device_runtime.broker.servers.dependent_process import FILES, DependentProcess

SLEEPS = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(15, signal.SIG_IGN); print('here', flush=True); {SLEEPS}"
STARTER = """
import sys, time
from pathlib import Path
from device_runtime.broker.servers.dependent_process import DependentProcess
program = DependentProcess([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
print(program.pid, flush=True)
time.sleep(600)
"""
LONELY = """
from device_runtime.broker.servers.dependent_process import end_when_alone
end_when_alone(0)
print("here", flush=True)
while True:
    pass
"""


def wait_for_line(log: Path, text: str) -> None:
    end = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("program", [SLEEPS, STUBBORN], ids=["plain", "deaf to SIGTERM"])
def test_a_program_ends_when_its_starter_is_killed_also_one_that_ignores_being_asked(program, tmp_path):
    log = tmp_path / "log"
    words = [sys.executable, "-c", STARTER, program, str(log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as starter:
        shell = psutil.Process(int(starter.stdout.readline())).parent()
        started = [shell, *shell.children(recursive=True)]
        if program == STUBBORN:
            wait_for_line(log, "here")
        starter.kill()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


def test_its_output_and_its_exit_code_are_told(tmp_path):
    log = tmp_path / "log"
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    program = DependentProcess([sys.executable, "-c", script], log)
    assert program.wait(60) == 3
    assert program.ended == 3
    program.stop(1.0)
    assert sorted(log.read_text().split()) == ["err", "out"]


def test_what_does_not_end_when_asked_is_killed(tmp_path):
    log = tmp_path / "log"
    program = DependentProcess([sys.executable, "-c", STUBBORN], log)
    wait_for_line(log, "here")
    program.stop(0.05)
    assert program.ended == 128 + signal.SIGKILL


def test_a_program_that_is_not_there_is_one_that_failed(tmp_path):
    program = DependentProcess([str(tmp_path / "nothing")], tmp_path / "log")
    assert program.wait(60) == 127
    program.close()
    assert "nothing" in (tmp_path / "log").read_text()


def test_a_process_ends_in_the_middle_of_its_work_when_nobody_has_the_other_end_of_its_pipe():
    child = subprocess.Popen(
        [sys.executable, "-c", LONELY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "here\n"
    child.stdin.close()
    assert child.wait(60) == 1
    child.stdout.close()


def test_a_program_may_open_as_many_files_as_the_system_lets_it(tmp_path):
    """A broker has one for each connection, and the usual limit of a shell is 1024."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    log = tmp_path / "log"
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, most[1]))
    try:
        script = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        assert DependentProcess([sys.executable, "-c", script], log).wait(60) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    allowed = FILES if most[1] == resource.RLIM_INFINITY else min(FILES, most[1])
    assert int(log.read_text()) == allowed
