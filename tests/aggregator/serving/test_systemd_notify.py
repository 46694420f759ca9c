"""What systemd hears of a real `serve`: that it is ready, works, hangs, and stops."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from device_runtime.aggregator.storage import run_files

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
BEAT_S = 0.5
"""Of a WATCHDOG_USEC of four beats."""
PATIENCE_S = 120.0


@pytest.fixture
def serving(tmp_path, systemd):
    """`serve` as the unit starts it, on a broker of its own: (process, run folder)."""
    run = tmp_path / "run"
    variables = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": str(int(4 * BEAT_S * 1e6))}
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(
            [COMMAND, "serve", "--bundle", "digits-wrn-10-1", "--run-dir", run],
            stdout=out,
            stderr=out,
            env={**os.environ, **variables},
        )
    yield process, run
    if process.poll() is None:
        process.kill()
    process.wait()


@contextmanager
def stuck(run):
    """The loop waits for what it is asked to do: a pipe that nobody writes into."""
    wish = run / run_files.ROLLBACK_FILE
    os.mkfifo(wish)
    try:
        yield
    finally:
        with wish.open("w") as writer:
            wish.unlink()
            writer.write("99\n")


def test_systemd_hears_that_it_is_ready_works_and_stops_in_order(systemd, serving, tmp_path):
    process, _ = serving
    assert systemd.hears() == "READY=1"
    assert [systemd.hears() for _ in range(3)] == ["WATCHDOG=1"] * 3
    process.send_signal(signal.SIGTERM)
    systemd.hears_at_last("STOPPING=1")
    assert process.wait(PATIENCE_S) == 0
    assert "stopped in round 0; the same command goes on with it" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_loop_that_hangs_is_silent_though_the_process_lives_and_speaks_when_it_goes_on(systemd, serving):
    process, run = serving
    assert systemd.hears() == "READY=1"
    with stuck(run):
        end = time.monotonic() + PATIENCE_S
        while systemd.hears(within_s=8 * BEAT_S):
            assert time.monotonic() < end, "it says that it works, and does not"
        assert process.poll() is None
    assert systemd.hears() == "WATCHDOG=1"
