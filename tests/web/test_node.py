"""The tests of the browser's side, run by Node's own test runner."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
LONGEST_S = 1800
TRAINING = ("agent", "masked_rounds", "pausing", "rounds", "task_offers")
"""Tests that train for most of their time."""


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_modules_of_the_browser_pass_their_own_tests(training: bool) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("web/vendor is missing: npm ci && npm run vendor in web/")
    files = sorted((WEB / "tests").glob("*.test.js"))
    tests = [str(file) for file in files if (file.name.removesuffix(".test.js") in TRAINING) == training]
    ran = subprocess.run(
        [
            node,
            "--test",
            "--test-concurrency=4",
            "--test-reporter=spec",
            *tests,
        ],
        cwd=WEB,
        env=os.environ | {"PYTHONPATH": str(WEB.parent), "NO_COLOR": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=LONGEST_S,
    )
    output = ran.stdout.partition("failing tests:")[2] or ran.stdout
    assert ran.returncode == 0, output[-8000:] + ran.stderr[-2000:]
    passed = re.search(r"^ℹ pass (\d+)$", ran.stdout, re.MULTILINE)
    assert passed and int(passed[1]) > 0, ran.stdout[-2000:]
