"""What joining by a browser takes: bytes of the page, and seconds from opening its address to being counted.

    .venv/bin/python benchmarks/join_page.py           # three visits and returns, a minute
    .venv/bin/python benchmarks/join_page.py --slow 4  # the page gets a quarter of the time

A real `serve --web` and a Chromium on this machine, with 240 handwritten digits given as a file;
the button is pressed at once. Then the page is closed, and opened again: the next round is open, with another
base. A contribution counts when the aggregator has it on its disk. Bytes are those of bodies as they are sent
(Brotli, gzip), of all files that a browser loads which was never there; of the next visit, all that crosses,
with headers. What is learnt is the shipped model, all of it. `--slow` stops the processes that show pages for
that share of each 80 ms; Chromium's own throttling leaves the worker, which trains, as fast as it was.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import psutil
from playwright.sync_api import Playwright, sync_playwright
from sklearn.datasets import load_digits
from tabulate import tabulate

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
SAMPLES = 240
PATIENCE_S = 120.0
LOOK_S = 0.02
SLICE_S = 0.08
LOADED = (
    "performance.getEntriesByType('resource')"
    ".map(e => [new URL(e.name).pathname, e.encodedBodySize, e.transferSize])"
)
GROUPS = ("WASM", "libraries", "device", "page")
STAGES = {"link": "connected", "task": "the model is ready", "plan": "training", "made": "trained"}
"""Stages of a visit, by the type of the worker's message that begins them."""
RECORD_STAGES = """{
  globalThis.stages = {};
  const Plain = Worker;
  globalThis.Worker = class extends Plain {
    constructor(...words) {
      super(...words);
      this.addEventListener("message", ({ data }) => {
        if (data.type !== "link" || data.connected) globalThis.stages[data.type] ??= Date.now() / 1000;
      });
    }
  };
}"""
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

    def counted(self) -> int:
        """Contributions that are on the disk."""
        path = self._run / "contributions.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def slowed(times: int) -> Iterator[None]:
    """Slow down the processes that show pages: they run for one part in `times` of the time."""
    ended = threading.Event()

    def page_processes() -> list[psutil.Process]:
        renderers = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if "--type=renderer" in words:
                    renderers.append(process)
        return renderers

    def slow() -> None:
        processes, looked = page_processes(), time.monotonic()
        while not ended.is_set():
            if time.monotonic() - looked > 0.5:
                processes, looked = page_processes(), time.monotonic()
            for number, seconds in (
                (signal.SIGSTOP, SLICE_S * (1 - 1 / times)),
                (signal.SIGCONT, SLICE_S / times),
            ):
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                time.sleep(seconds)

    thread = threading.Thread(target=slow)
    if times > 1:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if times > 1:
            thread.join()


class InChromium:
    """A page in a browser that was never there, with its storage on the disk as a person's."""

    def __init__(self, playwright: Playwright, folder: Path) -> None:
        self._context = playwright.chromium.launch_persistent_context(
            folder / "browser", executable_path=chromium(), args=list(FLAGS)
        )
        self._context.set_default_timeout(1000 * PATIENCE_S)
        self._context.add_init_script(RECORD_STAGES)
        self._page: Any = None

    def open(self, url: str) -> None:
        self._page = self._context.new_page()
        self._page.goto(url, wait_until="commit")

    def join(self, samples: Path) -> None:
        page = self._page
        page.click("#join button")
        page.wait_for_selector("#teach:not([hidden])")
        page.click("#files summary")
        page.set_input_files("#files-input", samples)

    def stages(self) -> dict[str, float]:
        """The first time of each message of the worker, in seconds of this machine's clock."""
        stages: dict[str, float] = self._page.evaluate("stages")
        return {what: stages[name] for name, what in STAGES.items() if name in stages}

    def loaded(self) -> dict[str, list[int]]:
        """Files, bytes of their bodies and bytes that crossed, by group."""
        transfers = {
            path: (sent, over)
            for where in (self._page, *self._page.workers)
            for path, sent, over in where.evaluate(LOADED)
        }
        sums = {name: [0, 0, 0] for name in GROUPS}
        for path, (sent, over) in transfers.items():
            for place, value in enumerate((1, sent, over)):
                sums[group(path)][place] += value
        return sums

    def shut(self) -> None:
        self._page.close()

    def close(self) -> None:
        self._context.close()


def settle(service: Service) -> None:
    """Wait until all that the closed page has sent is counted."""
    before = -1
    while before != (before := service.counted()):
        time.sleep(1.5)


def opened(tab: InChromium, service: Service, samples: Path | None) -> dict[str, float]:
    """Seconds from opening the page to each stage. It joins with `samples`; without, it has joined before."""
    before = service.counted()
    began, seconds = time.time(), {}
    tab.open(service.url)
    if samples:
        tab.join(samples)
        seconds["it has joined, and has samples"] = time.time() - began
    until(lambda: service.counted() > before or None)
    counted = time.time() - began
    stages = {what: at - began for what, at in tab.stages().items()}
    return seconds | stages | {"counted": counted}


def visit(playwright: Playwright, service: Service, folder: Path, slow: int) -> tuple[list[Any], Any]:
    """Seconds of a first visit and of a return, and files and bytes of both by group."""
    samples = folder.parent / "samples.npz"
    tab = InChromium(playwright, folder)
    with slowed(slow):
        first = opened(tab, service, samples)
        loaded = tab.loaded()
        tab.shut()
        settle(service)
        again = opened(tab, service, None)
    returned = tab.loaded()
    tab.close()
    return [first, again], {name: [*loaded[name][:2], returned[name][2]] for name in GROUPS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--slow", type=int, default=1, metavar="TIMES", help="that the page's processes are slower"
    )
    options = parser.parse_args()
    digits = load_digits()
    visits: list[list[Any]] = []
    weights: Any = None
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        playwright = stack.enter_context(sync_playwright())
        np.savez(root / "samples.npz", x=digits.images[:SAMPLES].astype(np.uint8), y=digits.target[:SAMPLES])
        for number in range(options.repeats):
            folder = root / str(number)
            folder.mkdir()
            service = Service(folder, "--rounds 100 --kinds full --deadline 60")
            try:
                seconds, weights = visit(playwright, service, folder, options.slow)
            finally:
                service.close()
            visits.append(seconds)
    if weights:
        rows = [[name, *weights[name]] for name in GROUPS]
        rows.append(["all", *(sum(weights[name][place] for name in GROUPS) for place in range(3))])
        print(tabulate(rows, headers=("what", "files", "bytes", "bytes of the next visit")), end="\n\n")
    for title, lines in zip(("first visit", "return"), zip(*visits, strict=True), strict=True):
        rows = [[what, *(f(line[what] for line in lines) for f in (median, min, max))] for what in lines[0]]
        print(tabulate(rows, headers=(f"{title}: seconds until", "median", "least", "most"), floatfmt=".1f"))
        print()


if __name__ == "__main__":
    main()
