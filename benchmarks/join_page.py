"""What joining by a browser takes: bytes of the page, and seconds from opening it to the first contribution.

    .venv/bin/python benchmarks/join_page.py             # three visits, about a minute
    .venv/bin/python benchmarks/join_page.py --repeats 9

A real `serve --web` and a Chromium on this machine, with 240 handwritten digits given as a file; the button
is pressed at once. Bytes are those of bodies as they are sent (Brotli, gzip), of all files that a browser
loads which was never there; of the next visit, all that crosses, with headers. What is learnt is the shipped
model, all of it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from playwright.sync_api import Browser, sync_playwright
from sklearn.datasets import load_digits
from tabulate import tabulate

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
SAMPLES = 240
PATIENCE_S = 120.0
LOOK_S = 0.02
LOADED = (
    "performance.getEntriesByType('resource')"
    ".map(e => [new URL(e.name).pathname, e.encodedBodySize, e.transferSize])"
)
GROUPS = ("WASM", "libraries", "device", "page")
T = TypeVar("T")


def until(condition: Callable[[], T | None]) -> T:
    """What it gives, once it gives something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if (value := condition()) is not None:
            return value
        time.sleep(LOOK_S)
    raise SystemExit(f"nothing came of it in {PATIENCE_S:.0f} s")


def chromium() -> str:
    """The program."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))


def group(path: str) -> str:
    if path.endswith(".wasm"):
        return "WASM"
    return "libraries" if "/vendor/" in path else "device" if "/device/" in path else "page"


class Service:
    """`serve --web` of the shipped model, in a process of its own."""

    def __init__(self, folder: Path, task: str = "--rounds 2 --kinds full --deadline 60") -> None:
        self._log, self._run = folder / "log", folder / "run"
        words = f"serve --bundle digits-wrn-10-1 {task} --web --http 127.0.0.1:0"
        with self._log.open("wb") as out:
            words_of = [COMMAND, *words.split(), "--run-dir", str(self._run)]
            self.process = subprocess.Popen(words_of, stdout=out, stderr=out)
        self.url = until(lambda: re.search(r"browsers join at (\S+)", self._log.read_text()))[1]

    def first(self) -> dict[str, Any] | None:
        """The first contribution that is on the disk."""
        path = self._run / "contributions.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[0]) if lines else None


def visit(browser: Browser, service: Service, samples: Path) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Seconds since the page was asked for, and bytes and files by group: of a first visit, of the next."""
    context = browser.new_context()
    page = context.new_page()
    began = time.monotonic()
    seconds = {}

    def passed(what: str) -> None:
        seconds[what] = time.monotonic() - began

    page.goto(service.url)
    page.wait_for_selector("#join button:visible")
    passed("the form is there")
    page.click("#join button")
    page.wait_for_selector("#teach:not([hidden])")
    page.click("#files summary")
    page.set_input_files("#files-input", samples)
    passed("it has joined, and has samples")
    until(service.first)
    passed("its first contribution is acknowledged")

    def loaded() -> dict[str, list[int]]:
        transfers = {
            path: (sent, over)
            for where in (page, page.workers[0])
            for path, sent, over in where.evaluate(LOADED)
        }
        sums = {name: [0, 0, 0] for name in GROUPS}
        for path, (sent, over) in transfers.items():
            for place, value in enumerate((1, sent, over)):
                sums[group(path)][place] += value
        return sums

    first = loaded()
    page.reload()
    page.wait_for_selector("#teach:not([hidden])")
    page.wait_for_timeout(2000)
    again = loaded()
    context.close()
    return seconds, {name: [*first[name][:2], again[name][2]] for name in GROUPS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    digits = load_digits()
    seconds, weights = [], {}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        samples = Path(name) / "samples.npz"
        np.savez(samples, x=digits.images[:SAMPLES].astype(np.uint8), y=digits.target[:SAMPLES])
        for number in range(repeats):
            folder = Path(name) / str(number)
            folder.mkdir()
            service = Service(folder)
            try:
                took, weights = visit(browser, service, samples)
            finally:
                service.process.kill()
                service.process.wait()
            seconds.append(took)
        browser.close()
    rows = [[name, *weights[name]] for name in GROUPS]
    rows.append(["all", *(sum(weights[name][place] for name in GROUPS) for place in range(3))])
    print(tabulate(rows, headers=("what", "files", "bytes", "bytes of the next visit")))
    print()
    rows = [[what, *(f(line[what] for line in seconds) for f in (median, min, max))] for what in seconds[0]]
    print(tabulate(rows, headers=("seconds until", "median", "least", "most"), floatfmt=".1f"))


if __name__ == "__main__":
    main()
