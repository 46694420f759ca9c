"""What is restarted again and again: a service with its broker, and a page that takes part."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port

from .services import task
from .serving_pages import WEB

NODE = shutil.which("node")
RESTARTS = 20
BACK_S = 120.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(
        NODE is None or not (WEB / "vendor" / "msgpack" / "index.mjs").exists(),
        reason="needs Node, and: npm ci && npm run vendor in web/",
    ),
]


def test_a_device_that_is_connected_goes_on_after_each_of_many_restarts_of_the_whole_service(
    launched, eventually, lines, digits_in, tmp_path
):
    """Killed and stopped in turn: gateway, aggregator and broker go and come back at their addresses."""
    pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
    run, port = tmp_path / "run", find_port(BrokerOptions())
    learnt = task(tmp_path / "task.toml", rounds=100_000, kind="class-means")
    service_words = ("serve", learnt, "--web", "--http", f"127.0.0.1:{port}", "--run-dir", run)
    settings = ("--name", "node", "--data", digits_in(tmp_path / "js.npz"), "--state", tmp_path / "state")
    words = ("--broker", f"ws://127.0.0.1:{port}/join/mqtt", *settings)

    def rounds():
        return [row["round"] for row in lines(run / "contributions.jsonl")]

    took = []
    with ExitStack() as stack:
        for life in range(RESTARTS + 1):
            before, began, log = len(rounds()), time.monotonic(), tmp_path / f"serve-{life}.log"
            with launched(log, *service_words) as service:
                if life == 0:
                    eventually((run / "http-token").exists)
                    node = (NODE, str(WEB / "node" / "run.js"))
                    device = stack.enter_context(launched(tmp_path / "node.log", *words, other=node))
                eventually(lambda before=before: len(rounds()) >= before + 2, BACK_S)  # one may be of before
                took.append(time.monotonic() - began)
                assert (service.poll(), device.poll()) == (None, None)
                service.send_signal(signal.SIGKILL if life % 2 else signal.SIGTERM)
                service.wait(600)
    print("seconds until it counts again:", " ".join(f"{seconds:.1f}" for seconds in took))
    assert rounds() == sorted(set(rounds()))


def test_nothing_is_lost_or_counted_twice_by_a_page_that_is_reloaded_hidden_offline_and_killed(tmp_path):
    """The soak run of pages in short, in two parts: the second goes on where the first has ended."""
    pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no Chromium is installed")
    root = Path(__file__).parents[2]
    words = "benchmarks/soak.py --devices 0 --pages 1 --whom page --deadline 60 --every 0.5 --seed 3 --kills"
    for kills in (4, 10):
        command = [sys.executable, *words.split(), str(kills), "--folder", str(tmp_path / "soak")]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"{kills} kills" in ran.stdout
        assert "nothing acknowledged is lost, nothing counts twice" in ran.stdout
