"""Counts how many faults in the machines of the device and of the aggregator the tests find (with mutmut).

    .venv/bin/pip install -e '.[mutation]'
    .venv/bin/python benchmarks/mutants.py               # all 2,400, 20 minutes on one core
    .venv/bin/python benchmarks/mutants.py --sample 100  # so many of each machine, drawn by --seed

mutmut makes mutants: copies of the code with one change each, of an operator, a number, a text or an
argument. It runs the tests that reach the changed function; a mutant that they all pass is missed.
`[tool.mutmut]` in pyproject.toml names the code and the tests. With `--folder` a run that was ended goes on
where it was, and `mutmut show NAME` in that folder shows a mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parent.parent
COPIED = ("device_runtime", "tests", "docs", "models", "profiles", "web/vectors")
"""What the tests of the machines read."""
MACHINES = {"device": "device_runtime.device.machine.", "aggregator": "device_runtime.aggregator.machine."}
MISSED = (0, 33)
"""Exit codes of a mutant that passes its tests, and of one that no test reaches."""
MUTMUT = shutil.which("mutmut", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))


def mutate(folder: Path, *names: str) -> dict[str, int | None]:
    """Run mutmut in a folder, on mutants of these names or on all; returns their exit codes by name.

    The code is copied there first, unless it is there already. None stands for mutants that were not run.
    Raises CalledProcessError.
    """
    if MUTMUT is None:
        raise SystemExit("mutmut is not installed: pip install -e '.[mutation]'")
    if not (folder / "pyproject.toml").exists():
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [MUTMUT, "run", "--max-children", "1", *names]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    codes: dict[str, int | None] = {}
    for path in sorted(folder.glob("mutants/**/*.meta")):
        codes |= json.loads(path.read_text("utf-8"))["exit_code_by_key"]
    return codes


def tried(folder: Path, sample: int | None, seed: int) -> dict[str, int | None]:
    """The exit codes of all mutants, or of a sample of each machine's, by name."""
    if sample is None:
        return mutate(folder)
    names = sorted(mutate(folder, f"{MACHINES['device']}step.x_step__mutmut_1"))
    drawn = [
        name
        for start in MACHINES.values()
        for name in random.Random(seed).sample(  # noqa: S311
            [each for each in names if each.startswith(start)], sample
        )
    ]
    codes = mutate(folder, *drawn)
    return {name: codes[name] for name in drawn}


def missed(codes: dict[str, int | None], machine: str) -> tuple[list[str], int]:
    """The names of a machine's mutants that no test finds, and the number of all its mutants."""
    own = {name: code for name, code in codes.items() if name.startswith(MACHINES[machine])}
    return [name for name, code in own.items() if code in MISSED], len(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sample", type=int, help="only so many mutants of each machine")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the copy of the code is made, and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        codes = tried(options.folder or Path(temporary), options.sample, options.seed)
    rows = []
    for machine in MACHINES:
        names, count = missed(codes, machine)
        rows.append((machine, count, len(names), f"{1 - len(names) / count:.1%}"))
        print("\n".join(f"missed: {name}" for name in names))
    print(tabulate(rows, headers=("machine", "mutants", "missed", "found")))


if __name__ == "__main__":
    main()
