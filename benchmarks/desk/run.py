"""Runs eight jobs of a researcher in this package, Flower, pfl and FedLab, and counts their lines.

    .venv/bin/python benchmarks/desk/run.py  # makes the peers' environments first: 15 minutes
    .venv/bin/python benchmarks/desk/run.py --systems ours --jobs sweep metric
    .venv/bin/python benchmarks/desk/run.py --count  # the table alone, nothing is run
    .venv/bin/python benchmarks/desk/run.py --pages  # writes the programs and the table into docs/from-*.md

A program is a file SYSTEM/JOB.py. Each trains the same network on the same samples of twenty clients, in
three rounds. Counted are the lines that are neither blank nor comments. What the jobs of a system share (its
client, its loop, its evaluation) is in fedavg.py, and is a row of its own; samples.py has the samples and the
network, and counts for nobody. A program has run if it ends with 0.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent / "peers"))

from environments import python_of

SYSTEMS = ("ours", "flower", "pfl", "fedlab")
JOBS = {
    "fedavg": "what all of them need: FedAvg on own samples, an own network",
    "policies": "three policies on own samples: FedAvg, FedProx, FedAdam",
    "update": "an own update: the largest tenth of the changes",
    "sweep": "a sweep of three learning rates, and the best",
    "devices": "accuracy on each device's own samples, and of the worst tenth",
    "metric": "an own metric: macro F1 after each round",
    "drawing": "an own drawing: those first who were asked, or have sent, least",
    "gpu": "on a GPU, where there is one",
    "notebook": "a plot of accuracy for a notebook",
}
LIMIT_S = 900
PAGES = tuple(ROOT / "docs" / f"from-{system}.md" for system in SYSTEMS[1:])
BLOCK = re.compile(
    r"^<!-- (?P<name>table|\w+/\w+\.py) -->\n(?:```python\n.*?^```\n|(?:\|[^\n]*\n)+)?", re.M | re.S
)


def program(system: str, job: str) -> Path:
    """The file of a job; it need not exist."""
    return HERE / system / f"{job}.py"


def lines_of_code(source: str) -> int:
    """The number of lines that are neither blank nor a comment."""
    lines = map(str.strip, source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def ran(system: str, job: str, environments: Path) -> str:
    """The seconds that a program took; or why it failed."""
    file = program(system, job)
    paths = os.pathsep.join(map(str, (HERE, file.parent, *([ROOT] if system == "ours" else []))))
    try:
        python = python_of(system, environments)
    except subprocess.CalledProcessError as error:
        return f"failed: {system} cannot be installed here: {' '.join(map(str, error.cmd[1:4]))}"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "MPLBACKEND": "Agg", "RAY_worker_niceness": "0"}
    environment = {**os.environ, **quiet, "PYTHONPATH": paths}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        try:
            end = subprocess.run(
                [python, str(file)],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return f"failed: more than {LIMIT_S} s"
    if end.returncode:
        return f"failed: {(end.stderr.strip() or 'no reason given').splitlines()[-1][:60]}"
    print(f"{system} {job}:", *end.stdout.strip().splitlines()[-4:], sep="\n  ", file=sys.stderr, flush=True)
    return f"{time.monotonic() - began:.0f} s"


def table(results: dict[tuple[str, str], str]) -> str:
    """Lines of code of each job, with the seconds where it was run."""
    rows = []
    for job, title in JOBS.items():
        cells = []
        for system in SYSTEMS:
            file = program(system, job)
            count = str(lines_of_code(file.read_text("utf-8"))) if file.exists() else "-"
            cells.append(f"{count} ({results[system, job]})" if (system, job) in results else count)
        rows.append((title, *cells))
    return tabulate(rows, ("job", *SYSTEMS), tablefmt="github", disable_numparse=True)


def refreshed(page: str) -> str:
    """A page with the programs and the table as they are now: each stands below a comment that names it."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name == "table":
            return f"<!-- table -->\n{table({})}\n"
        return f"<!-- {name} -->\n```python\n{(HERE / name).read_text('utf-8')}```\n"

    return BLOCK.sub(block, page)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--jobs", nargs="+", choices=tuple(JOBS), default=tuple(JOBS))
    parser.add_argument("--count", action="store_true", help="run nothing")
    parser.add_argument("--pages", action="store_true", help="run nothing, and write the pages")
    parser.add_argument("--environments", type=Path, default=ROOT / ".bench-environments")
    options = parser.parse_args()
    if options.pages:
        for page in PAGES:
            page.write_text(refreshed(page.read_text("utf-8")), "utf-8")
        return 0
    results: dict[tuple[str, str], str] = {}
    for system in () if options.count else options.systems:
        for job in options.jobs:
            if program(system, job).exists():
                results[system, job] = ran(system, job, options.environments)
    print(table(results))
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
