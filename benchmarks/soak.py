"""Kills the processes of a federation two hundred times: aggregator, broker, devices, mask helpers.

    .venv/bin/python benchmarks/soak.py                         # 200 kills, about 20 minutes
    .venv/bin/python benchmarks/soak.py --kills 20 --seed 3     # a look
    .venv/bin/python benchmarks/soak.py --kinds zeroth-order    # rounds and contributions in few bytes
    .venv/bin/python benchmarks/soak.py --mask-helpers 2        # updates are masked
    .venv/bin/python benchmarks/soak.py --folder runs/soak      # keep everything, and go on there
    PYTHONPATH=. .venv/bin/python benchmarks/soak.py --devices 0 --pages 1 --whom page --deadline 60

The aggregator, Mosquitto and the devices are processes; devices really train on handwritten digits. Who is
killed, when, how (SIGKILL, SIGTERM, or stopped for a while) and when it comes back is drawn from --seed.
Pages in Chromium (soak_page.py) are reloaded, hidden, frozen, taken off the network, crashed, and killed.
When all kills are done the run is left alone until two rounds have had everybody and nothing of earlier ones
waits for its receipt (what was sent to nobody is sent again after 10 s, or 20, ...), is stopped in order, and
is audited: what every device was told, and what waits in its outbox, is compared with what the aggregator has
on its disk. Ends with 1 if anything does not agree. That a next round is open says of a contribution in few
bytes that there is nothing to wait for: it counts, or the aggregator never had it. Both are counted. With
mask helpers, each set that a helper has summed is compared with the contributions that the aggregator has.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from tabulate import tabulate

from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire.messages import Contribution, decode
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.simulation import digits

if TYPE_CHECKING:
    from soak_page import Page

COMMAND = "import sys; from device_runtime.cli import main; sys.exit(main(sys.argv[1:]))"
TOLD = re.compile(r"round (\d+): (\S+?)(?: (accepted|duplicate|late|refused)|: the round is (over))")
ROUNDS = 1_000_000
"""More than can be done: the run is stopped."""
CALM_ROUNDS, CALM_S = 2, 300.0
"""Rounds with everybody that there must be, and in so many seconds, once nothing is killed any more."""


@dataclass
class Part:
    """A process that is started again with the same words whenever it was killed."""

    name: str
    words: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *self.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.alive:
            self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        self.signal(number)
        if self.process is not None:
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Soak:
    """One run. `kills` counts what was done to whom."""

    folder: Path
    options: argparse.Namespace
    kills: Counter[str] = field(default_factory=Counter)

    sets: int = 0
    """Sets of masks that a helper has summed."""

    def __post_init__(self) -> None:
        self._events = self.folder / "kills"
        self.kills.update(self._events.read_text().splitlines() if self._events.exists() else [])
        self.broker_options = {"persistence": self.options.persistence, "folder": self.folder / "broker"}
        self.broker = self._broker(0)
        url = self.broker.url
        serve = (
            f"serve --bundle digits-wrn-10-1 --rounds {ROUNDS} --deadline {self.options.deadline:g} "
            f"--min-devices {min(2, self.options.devices + self.options.pages)} "
            f"--kinds {self.options.kinds} --broker {url}"
        )
        self.playwright: Any = None
        self.pages: list[Page] = []
        if self.options.pages:
            ports = self.folder / "ports"  # what a browser stores belongs to an address
            if not ports.exists():
                ports.write_text(
                    " ".join(str(find_port(BrokerOptions())) for _ in range(1 + self.options.pages))
                )
            http, *of_pages = map(int, ports.read_text().split())
            serve += f" --web --http 127.0.0.1:{http}"
            self.pages = [self._page(*where, http) for where in enumerate(of_pages)]
        self.helpers = [self._helper(number, url) for number in range(self.options.mask_helpers)]
        if self.helpers:
            serve += f" --min-group 2 --mask-helpers {','.join(map(self._key, self.helpers))}"
        run = self.folder / "run"
        self.aggregator = Part(
            "aggregator", [*serve.split(), "--run-dir", str(run)], self.folder / "aggregator.log"
        )
        self.devices = [self._device(number, url) for number in range(self.options.devices)]

    def _broker(self, port: int) -> Mosquitto:
        end = time.monotonic() + 20
        while True:
            try:
                started = brokers.start("mosquitto", BrokerOptions(port=port, **self.broker_options))
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
            else:
                assert isinstance(started, Mosquitto)
                return started

    def _page(self, number: int, port: int, http: int) -> Page:
        from playwright.sync_api import sync_playwright
        from soak_page import Page

        from tests.network import Proxy

        self.playwright = self.playwright or sync_playwright().start()
        proxy = Proxy(f"ws://127.0.0.1:{http}", opaque=True, port=port)
        samples = self._samples(f"page-{number}", self.options.devices + number)
        return Page(f"page-{number}", self.playwright, proxy, samples)

    def _samples(self, name: str, number: int) -> Path:
        """The file of a member's samples."""
        data = self.folder / f"{name}.npz"
        split = digits.load(np.random.default_rng([self.options.seed, number]))
        np.savez(data, x=split.train.x[:40], y=split.train.y[:40])
        return data

    def _device(self, number: int, url: str) -> Part:
        name = f"pi-{number}"
        data = self._samples(name, number)
        words = ["join", url, "--data", str(data), "--name", name, "--state", str(self.folder / name)]
        return Part(name, words, self.folder / f"{name}.log")

    def _helper(self, number: int, url: str) -> Part:
        name = f"helper-{number}"
        words = ["mask-helper", url, "--name", name, "--state", str(self.folder / name)]
        return Part(name, words, self.folder / f"{name}.log")

    def _key(self, helper: Part) -> str:
        """NAME=KEY of a helper, whose key is made with that."""
        words = [sys.executable, "-c", COMMAND, *helper.words, "--print-key"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def members(self) -> list[Part | Page]:
        """All devices and pages."""
        return [*self.devices, *self.pages]

    @property
    def parts(self) -> list[Part]:
        """Every process but the broker and browsers."""
        return [self.aggregator, *self.helpers, *self.devices]

    def run(self) -> None:
        """Kill until it is enough, then wait for the end of the last round."""
        for part in self.parts:
            part.start()
        started = time.monotonic()
        if self.pages:
            self.wait(lambda: self.log_has("browsers join"), 120, "no page is served")
        for page in self.pages:
            page.start()
        self.wait(lambda: self.rounds > 0 or self.log_has("round 1"), 120, "the first round does not begin")
        while (done := sum(self.kills.values())) < self.options.kills:
            draw = random.Random(f"{self.options.seed} {done}")  # noqa: S311 - whom to kill
            time.sleep(draw.expovariate(1 / self.options.every))
            if not self.aggregator.alive:  # nobody killed it
                raise RuntimeError(f"the aggregator has ended; see its log in {self.folder}")
            what = self.disturb(draw)
            self.kills[what] += 1
            with self._events.open("a") as events:
                events.write(f"{what}\n")
            done += 1
            if done % 10 == 0:
                seconds = time.monotonic() - started
                print(
                    f"{done} of {self.options.kills} kills, round {self.rounds + 1}, {seconds:.0f} s",
                    flush=True,
                )
        self.revive()
        calm = self.rounds
        self.wait(lambda: self.whole(calm) >= CALM_ROUNDS, CALM_S, "no rounds with everybody come")
        self.wait(
            lambda: not self.unreceipted(calm),
            CALM_S,
            lambda: f"contributions (device, round) have no receipt: {self.unreceipted(calm)}",
        )

    def disturb(self, draw: random.Random) -> str:
        """Disturb one part for a while; returns which, and how."""
        weights = {"aggregator": 3, "broker": 2, "device": 5, "helper": 3, "page": 5}
        parts: dict[str, list[Any]] = {
            "aggregator": [self.aggregator],
            "broker": [None],
            "device": self.devices,
        }
        parts |= {"helper": self.helpers, "page": self.pages}
        names = [name for name in self.options.whom or weights if parts[name]]
        whom = draw.choices(names, [weights[name] for name in names])[0]
        how = draw.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], [6, 2, 2])[0]
        away_s = draw.uniform(0.0, 3.0)
        part = draw.choice(parts[whom])
        if whom == "page":
            return f"page: {part.disturb(draw)}"
        if whom == "broker":
            self._end_broker(how, away_s)
        elif how == signal.SIGSTOP:
            part.signal(how)
            time.sleep(away_s)
            part.signal(signal.SIGCONT)
        else:
            part.end(how)
            time.sleep(away_s / 3)
            part.start()
        return f"{whom} {how.name}"

    def _end_broker(self, how: signal.Signals, away_s: float) -> None:
        if how == signal.SIGSTOP:
            os.kill(self.broker.pid, signal.SIGSTOP)
            time.sleep(away_s)
            os.kill(self.broker.pid, signal.SIGCONT)
            return
        port = BrokerUrl.parse(self.broker.url).port
        if how == signal.SIGKILL:
            self.broker.kill()
        else:
            self.broker.stop()
        time.sleep(away_s / 3)
        self.broker = self._broker(port)

    def revive(self) -> None:
        for part in self.parts:
            if not part.alive:
                part.start()

    @property
    def rounds(self) -> int:
        """Rounds that are closed."""
        file = self.folder / "run" / "rounds.jsonl"
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    def whole(self, since: int) -> int:
        """Rounds with everybody in them, after so many."""
        lines = (self.folder / "run" / "rounds.jsonl").read_bytes().splitlines()[since:]
        return sum(msgspec.json.decode(line)["participants"] == len(self.members) for line in lines)

    def log_has(self, text: str) -> bool:
        return text in self.aggregator.log.read_text(errors="replace")

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str | Callable[[], str]) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                what = what if isinstance(what, str) else what()
                raise RuntimeError(f"{what} within {timeout_s:g} s; see the logs in {self.folder}")
            time.sleep(0.2)

    def close(self) -> None:
        for page in self.pages:
            page.close()
        if self.playwright:
            self.playwright.stop()
        for part in reversed(self.parts):
            part.end(signal.SIGTERM)
        self.broker.stop()

    def unreceipted(self, until: int) -> list[tuple[str, int]]:
        """What waits in outboxes of rounds up to this one: device and round."""
        waiting = []
        for page in self.pages:
            page.sync()
        for device in self.members:
            for path in (self.folder / device.name / "outbox").glob("*.msg"):
                with suppress(FileNotFoundError):  # it has its receipt just now
                    waiting.append((device.name, decode(path.read_bytes(), Contribution).round))
        return [(name, number) for name, number in waiting if number <= until]

    def audit(self) -> list[str]:
        """What does not agree; empty when all does."""
        with sqlite3.connect(self.folder / "run" / "run.sqlite") as db:
            stored = list(db.execute("SELECT round, device, kind, into_round FROM contributions"))
            records = dict(db.execute("SELECT round, record FROM rounds WHERE record NOT NULL"))
        wrong = []
        counted = Counter((number, device, kind) for number, device, kind, _ in stored)
        wrong += [f"{key} is counted {count} times" for key, count in counted.items() if count > 1]
        self.statuses: Counter[str] = Counter()
        for device in self.members:
            for number, kind, status, over in TOLD.findall(device.log.read_text(errors="replace")):
                counts = (int(number), device.name, kind) in counted
                self.statuses[status or f"{over}: {'it counts' if counts else 'it never came'}"] += 1
                if status in ("accepted", "duplicate") and not counts:
                    wrong.append(
                        f"{device.name} was told that {kind} of round {number} counts: it is not stored"
                    )
        wrong += [
            f"{name} has no receipt for round {number}, which is closed"
            for name, number in self.unreceipted(max(records) - CALM_ROUNDS)
        ]
        by_page = Counter(name for _, name in {(number, name) for number, name, _ in counted})
        wrong += [
            f"{page.name} says that it helped {page.helped} times; it is counted {by_page[page.name]} times"
            for page in self.pages
            if page.helped > by_page[page.name]
        ]
        self.closed = len(records)
        missing = set(range(1, self.closed + 1)) - records.keys()
        wrong += [f"round {number} has no record" for number in sorted(missing)]
        for number, record in records.items():
            reported, stored_count = (
                msgspec.msgpack.decode(record)["participants"],
                len({device for _, device, _, into in stored if into == number}),
            )
            if reported != stored_count:
                wrong.append(
                    f"round {number} says {reported} participants, contributions of {stored_count} are stored"
                )
        lines = (self.folder / "run" / "contributions.jsonl").read_bytes().splitlines()
        closed = sum(entry[3] in records for entry in stored)
        if len(lines) != closed:
            wrong.append(f"contributions.jsonl has {len(lines)} lines, of closed rounds {closed} are stored")
        self.stored = len(stored)
        updates = {(number, device) for number, device, _, _ in stored}
        return wrong + [line for helper in self.helpers for line in self._audit_helper(helper, updates)]

    def _audit_helper(self, helper: Part, updates: set[tuple[int, str]]) -> list[str]:
        """What a helper has summed that the aggregator has no contribution of, or more than once."""
        with sqlite3.connect(self.folder / helper.name / "masks.sqlite") as db:
            query = "SELECT rounds.round, device FROM used JOIN rounds ON rounds.number = used.round"
            summed = Counter(db.execute(query))
            [self.sets] = db.execute("SELECT count(*) FROM sets").fetchone()
        about = [f"{device} of round {number}" for number, device in summed.keys() - updates]
        again = [f"{device} of round {number}" for (number, device), times in summed.items() if times > 1]
        return [f"{helper.name} has summed {update}, which is not stored" for update in about] + [
            f"{helper.name} has summed {update} twice" for update in again
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--kills", type=int, default=200)
    add(
        "--every",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="between two kills, on average (default: 3)",
    )
    add("--devices", type=int, default=4)
    add("--kinds", default="full,few-shot,class-means", help="that rounds ask for")
    add("--deadline", type=float, default=8.0, metavar="SECONDS", help="of a round (default: 8)")
    add("--pages", type=int, default=0, metavar="N", help="with N pages in Chromium (default: 0)")
    add("--whom", nargs="*", help="only these: aggregator, broker, device, helper, page (default: everybody)")
    add("--mask-helpers", type=int, default=0, metavar="N", help="with N mask helpers (default: 0)")
    add("--seed", type=int, default=0)
    add("--persistence", action="store_true", help="of the broker")
    add(
        "--folder",
        type=Path,
        help="keep everything here (default: a temporary folder, kept after a failure)",
    )
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # what it has started ends with it
    soak, started = Soak(folder, options), time.monotonic()
    try:
        soak.run()
    except KeyboardInterrupt:
        print("ended before all kills were done: the same command goes on")
    finally:
        soak.close()
    wrong = soak.audit()
    if not (wrong or options.folder):
        shutil.rmtree(folder)
    kills = sum(soak.kills.values())
    print(tabulate(sorted(soak.kills.items()), ("killed", "times")))
    print()
    print(tabulate(sorted(soak.statuses.items()), ("devices were told", "times")))
    seconds = time.monotonic() - started
    print(
        f"\n{kills} kills, {soak.closed} rounds, {soak.stored} contributions stored, {seconds:.0f} s, "
        f"seed {options.seed}"
    )
    if soak.helpers:
        print(f"{soak.sets} sets of masks were summed by each of {len(soak.helpers)} mask helpers")
    good = "nothing acknowledged is lost, nothing counts twice, every round has its record"
    print("\n".join(wrong) if wrong else good)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
