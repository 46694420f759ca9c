"""One command at a time in a folder; processes that end with the one that started them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from device_runtime.simulation.compare.running import folder_lock, interruptible
from device_runtime.simulation.errors import ScenarioError

CHILD = (
    "from device_runtime.simulation.compare.running import end_with_parent as e\n"
    "e(); print('here', flush=True)\n"
)
STAYS = CHILD + "import time; time.sleep(600)"


def test_a_folder_is_for_one_command_until_it_is_done(tmp_path):
    refused = pytest.raises(ScenarioError, match=r"another simulation is at work in .*--run-dir")
    with folder_lock(tmp_path), refused, folder_lock(tmp_path, patience_s=0):
        pass
    with folder_lock(tmp_path, patience_s=0):
        pass


def test_a_process_that_inherits_the_lock_holds_it_until_it_ends(tmp_path):
    with folder_lock(tmp_path) as lock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    with pytest.raises(ScenarioError), folder_lock(tmp_path, patience_s=0):
        pass
    child.communicate(b"\n")
    with folder_lock(tmp_path, patience_s=0):
        pass


def test_a_process_ends_when_nobody_holds_its_standard_input():
    child = subprocess.Popen(
        [sys.executable, "-c", STAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "here\n"
    child.stdin.close()
    assert child.wait(600) == -signal.SIGTERM
    child.stdout.close()


def test_without_a_pipe_a_process_goes_on():
    ended = subprocess.run(
        [sys.executable, "-c", CHILD], stdin=subprocess.DEVNULL, timeout=120, capture_output=True
    )
    assert (ended.returncode, ended.stdout) == (0, b"here\n")


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    """A signal that ends a process, whatever handler was left on it before."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_being_ended_is_an_interruption_and_only_within(number):
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), number)  # any thread may take it: the handler runs in this one, soon
        for _ in range(1000):
            time.sleep(0.01)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
