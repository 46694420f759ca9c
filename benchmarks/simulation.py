"""Simulated rounds, timed: ours beside a bare torch loop, Flower (both of its APIs) and pfl.

    .venv/bin/python benchmarks/simulation.py peers  # all works, 3 repeats: half an hour
    .venv/bin/python benchmarks/simulation.py peers --quick  # a look: 5 minutes
    .venv/bin/python benchmarks/simulation.py peers --cases A --peers 'ours*' bare
    .venv/bin/python benchmarks/simulation.py check  # all end at the same weights: 2 minutes
    .venv/bin/python benchmarks/simulation.py growth --plot docs/simulation-growth.png
    .venv/bin/python benchmarks/simulation.py batched  # clients per second, one core and CUDA

A: CNN conv32-conv64-pool-dense128 (1,626,442 parameters), 1,000 users of 50 images 3x32x32, 50 a round,
batch 10, one epoch, SGD 0.1.
B: logistic regression 784-10, 1,000 users of 60, 10 a round, batch 10, one epoch, SGD 0.03.
C: no work, 1,000 parameters sent back, 50 a round of 1,000, 5,000 and, ours alone, 100,000 and 15,000,000
users.

Every peer has an environment of its own, with the same torch; runs two processes of one thread each; takes
its samples from the same files, its start from the same weights. Their settings stand in the heads of the
scripts in benchmarks/peers. Peers take turns, `--repeats` times; a figure is the median of all rounds but the
first ones of each run. Memory is of a run of its own: the sum over the process tree, sampled every 50 ms, of
the proportional set size (PSS: shared pages once) and of the resident set size (RSS: in every process).
`check` runs three rounds of six users, all of them taking part with the same order of batches, and compares
the weights with those of the same loop in float64. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).parent.parent
PEERS = Path(__file__).parent / "peers"
sys.path[0] = str(PEERS)  # its modules import each other

import processes
from environments import python_of
from runners import CASES, OURS, REFERENCE, RUNNERS, Case, peers_for
from work import WORKS, Job, write

LIMIT_S = 1800.0
CHECKED_USERS, CHECKED_ROUNDS, CHECKED_TO = 6, 3, 1e-6


@dataclass(frozen=True)
class Place:
    """Where environments are, and where samples, logs and results go."""

    environments: Path
    folder: Path

    def data(self, case: Case, checked: bool = False) -> Path:
        """The samples of a case, written unless they are there."""
        folder = self.folder / f"{case.work}-{case.users}"
        write(case.work, case.users, CHECKED_ROUNDS if checked else 0, folder)
        return folder

    def run(self, name: str, job: Job, sampled: bool = False) -> tuple[dict[str, Any], processes.Peak]:
        """What a runner reports of a job, and the memory that it took if it is `sampled`."""
        peer = RUNNERS[name]
        command = [python_of(peer.environment, self.environments), str(PEERS / peer.script)]
        log = Path(job.out).with_suffix(".log")
        peak = processes.run([*command, *job.flags(), *peer.flags], log, LIMIT_S, sampled)
        return json.loads(Path(job.out).read_text()), peak

    def out(self, name: str, case: str) -> str:
        return str(self.folder / f"{case}-{name.replace(', ', '-').replace(' ', '-')}.json")


def peers(options: argparse.Namespace, place: Place) -> int:
    """All peers on all cases, in turn: prints a table of each case, and the versions."""
    versions: dict[str, str] = {}
    every: list[dict[str, Any]] = []
    repeats = 1 if options.quick else options.repeats
    for key in options.cases or CASES:
        case = CASES[key].quick() if options.quick else CASES[key]
        rows = list(measured(place, key, case, peers_for(options.peers, key), repeats))
        for row in rows:
            versions |= row.pop("versions")
        every += rows
        ours = next((row["ms"] for row in rows if row["peer"] == OURS), rows[0]["ms"] if rows else 0.0)
        print(f"\n{key}: {case.cohort} of {case.users:,} users a round")
        print(
            tabulate(
                [cells(row, ours) for row in rows], headers="keys", disable_numparse=True, stralign="right"
            )
        )
        if options.json:
            options.json.write_text(json.dumps({"versions": versions, "rows": every}, indent=1))
    print("\n" + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())))
    return 0


def measured(place: Place, key: str, case: Case, names: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """The figures of each peer: rounds of all repeats, and the memory of one more, short run."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    job = Job(case.work, case.users, case.cohort, case.rounds, str(place.data(case)), "")
    versions = {}
    failed: dict[str, str] = {}
    for repeat in range(repeats):
        for name in names[:: -1 if repeat % 2 else 1]:
            if name in failed:
                continue
            say(f"{key}, {name}: run {repeat + 1} of {repeats}")
            try:
                report, _ = place.run(name, replace(job, out=place.out(name, key)))
            except RuntimeError as error:
                failed[name] = str(error)
                say(failed[name])
                continue
            seconds[name] += report["seconds"][case.warm :]
            versions[name] = report["versions"]
    for name in (name for name in names if name not in failed):
        say(f"{key}, {name}: memory")
        short = replace(job, rounds=case.short, out=place.out(name, f"{key}-memory"))
        _, peak = place.run(name, short, sampled=True)
        spread = np.percentile(np.array(seconds[name]) * 1e3, (25, 75)).tolist()
        yield {
            "case": key,
            "peer": name,
            "ms": 1e3 * median(seconds[name]),
            "quartiles": spread,
            "rounds": len(seconds[name]),
            "pss": peak.pss,
            "rss": peak.rss,
            "versions": versions[name],
        }


def cells(row: dict[str, Any], ours: float) -> dict[str, str]:
    """A line of the table."""
    return {
        "peer": row["peer"],
        "ms a round": f"{row['ms']:.2f}" if row["ms"] < 100 else f"{row['ms']:.0f}",
        "quartiles": "-".join(f"{q:.3g}" for q in row["quartiles"]),
        "of ours": f"{row['ms'] / ours:.2f}",
        "rounds": str(row["rounds"]),
        "PSS MB": f"{row['pss'] / 1e6:.0f}",
        "RSS MB": f"{row['rss'] / 1e6:.0f}",
    }


def check(options: argparse.Namespace, place: Place) -> int:
    """Three rounds of all: the largest difference of any weight from float64's; 1 where it is above 1e-6."""
    rows, worst = [], 0.0
    for key, case in {"A": CASES["A"], "B": CASES["B"], "C-1000": CASES["C-1000"]}.items():
        small = replace(case, users=CHECKED_USERS, cohort=CHECKED_USERS, rounds=CHECKED_ROUNDS)
        data = str(place.data(small, checked=True))
        weights = {}
        for name in (REFERENCE, *peers_for(options.peers, key)):
            say(f"{key}, {name}")
            job = Job(
                case.work, small.users, small.cohort, small.rounds, data, place.out(name, f"check-{key}")
            )
            try:
                place.run(name, replace(job, check=True))
            except RuntimeError as error:
                say(str(error))
                worst = np.inf
                continue
            weights[name] = vector(Path(job.out).with_suffix(".npz"), case.work)
        moved = np.abs(weights[REFERENCE] - vector(Path(data) / "weights.npz", case.work)).max()
        for name in weights.keys() - {REFERENCE}:
            off = float(np.abs(weights[name] - weights[REFERENCE]).max())
            worst = max(worst, off)
            rows.append((key, name, f"{off:.1e}", f"{moved:.1e}"))
    print(tabulate(sorted(rows), ("work", "peer", "off float64", "weights moved"), disable_numparse=True))
    return int(worst > CHECKED_TO)


def vector(path: Path, work: str) -> np.ndarray[Any, Any]:
    """All weights of a file, one after another."""
    with np.load(path) as stored:
        return np.concatenate([stored[name].ravel() for name in WORKS[work].weights])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("peers", "check", "growth", "batched"))
    parser.add_argument("--cases", nargs="+", choices=CASES, help="of `peers` (all of them)")
    parser.add_argument("--peers", nargs="+", metavar="PATTERN", help="; ".join(RUNNERS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each peer (3)")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--json", type=Path, help="where all figures go, too")
    parser.add_argument("--plot", type=Path, help="PNG of `growth`")
    parser.add_argument("--environments", type=Path, default=ROOT / ".bench-environments")
    parser.add_argument("--folder", type=Path, help="samples, logs and results (in --environments)")
    options = parser.parse_args()
    place = Place(options.environments, options.folder or options.environments / "work")
    place.folder.mkdir(parents=True, exist_ok=True)
    if options.what == "growth":
        from growth import growth

        return growth(options, place.folder)
    if options.what == "batched":
        from batches import batched

        return batched(options, place.folder)
    return check(options, place) if options.what == "check" else peers(options, place)


if __name__ == "__main__":
    sys.exit(main())
