import subprocess
import time

import psutil
import pytest

from device_runtime.service_process import run_program


def test_what_a_program_says_and_how_it_ends():
    done = run_program(["sh", "-c", "printf 'a\\377'; echo no >&2; exit 3"], 60.0)
    assert (done.stdout, done.stderr, done.returncode) == ("a\ufffd", "no\n", 3)


def test_a_program_is_not_given_what_we_are_to_read():
    assert run_program(["cat"], 60.0).stdout == ""


def test_what_a_program_that_hangs_has_started_is_ended_with_it(tmp_path):
    child = tmp_path / "child"
    script = f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait"  # as Termux:API's scripts
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(["sh", "-c", script], 3.0)
    number, end = int(child.read_text()), time.monotonic() + 60
    while psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_program_that_is_not_here():
    with pytest.raises(FileNotFoundError):
        run_program(["no-such-program-anywhere"], 1.0)
