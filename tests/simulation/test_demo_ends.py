"""The demo's processes: none is left, however the demo ends."""

import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

MARK = "DEVICE_RUNTIME_TEST_MARK"
WITHIN_S = 15.0
"""Where nothing else computes it takes 1 s."""


@pytest.fixture
def mark():
    """A word in the environment of the demo that is inherited by all of its processes; none is left after."""
    word = uuid.uuid4().hex
    yield word
    for process in marked(word):
        process.kill()


def marked(word):
    """The processes that have this word in their environment."""
    processes_ = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == word and process.status() != psutil.STATUS_ZOMBIE:
                processes_.append(process)
        except psutil.Error:
            continue
    return processes_


def left_after(seconds, word):
    """What is left of its processes after so many seconds, if anything is."""
    end = time.monotonic() + seconds
    while (left := marked(word)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def running_demo(folder, word):
    """A demo of which the broker and some devices have been started."""
    program = "import sys; from device_runtime.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "demo", "--run-dir", str(folder)]
    demo = subprocess.Popen(
        words, env={**os.environ, MARK: word}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 120
    while not list(folder.glob("mixed-0/devices/board/device.log")):
        assert demo.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    return demo


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_process_is_left_when_a_signal_ends_the_demo(number, tmp_path, mark):
    demo = running_demo(tmp_path / "run", mark)
    assert len(marked(mark)) > 3
    demo.send_signal(number)
    demo.wait(60)
    assert left_after(WITHIN_S, mark) == []
