"""A device install from wheels alone in each Python, without a network or a compiler, and a round in each.

    .venv/bin/python benchmarks/pythons.py FOLDER python3.10 python3.11 python3.12 python3.13

`bundle-wheels` downloads for each Python; its own pip then installs with --no-index. PATH holds nothing but
that installation, so that no compiler is found. Then `profile`, and a round of full updates against an
aggregator here. Exit code 1 where one was not done.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

from tabulate import tabulate

from benchmarks.boards import kinds, rounds, wheel
from benchmarks.boards.kinds import COMMAND, Trial
from benchmarks.boards.rounds import Place

ROUND = Trial("full", "tuned")
VERSIONS = "from importlib.metadata import version; print(version('onnxruntime'), version('numpy'))"


def installed(python: str, folder: Path) -> Path:
    """The programs of a device install in that Python, made without network and compiler."""
    version = output(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    house, home = folder / f"wheels-{version}", folder / f"device-{version}"
    own = wheel.built(folder / "wheel")
    subprocess.run([COMMAND, "bundle-wheels", "--python", version, "--wheel", own, house], check=True)
    subprocess.run([python, "-m", "venv", "--clear", home], check=True)
    what = ("--no-index", "--only-binary=:all:", "--find-links", house, "device-runtime")
    command = [home / "bin" / "python", *wheel.PIP, "install", *what]
    subprocess.run(command, check=True, env={"PATH": str(home / "bin")})
    return home / "bin"


def output(*words: str | Path) -> str:
    return subprocess.check_output([str(word) for word in words], text=True, env={"PATH": ""}).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="wheels and environments are made there")
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    options = parser.parse_args()
    folder = options.folder.absolute()
    kinds.export(folder / "bundles")
    rows, passed = [], True
    for name in options.pythons:
        programs = installed(shutil.which(name) or name, folder)
        engine, numpy = output(programs / "python", "-c", VERSIONS).split()
        profile = json.loads(output(programs / "device-runtime", "profile", "--format", "json"))
        place = Place([str(programs / "device-runtime")], folder / "bundles" / "data.npz")
        with tempfile.TemporaryDirectory() as home:
            done = rounds.one_round(ROUND, place, Path(home) / "round", folder / "bundles")
        passed &= done.accepted
        version = output(programs / "python", "-c", "import platform; print(platform.python_version())")
        speed = f"{profile['speed']['flops_per_s'] / 1e9:.2f}"
        rows.append((version, engine, numpy, speed, rounds.last_words(done)))
        print(*rows[-1], sep="  ", flush=True)
    print(tabulate(rows, ("Python", "ONNX Runtime", "numpy", "GFLOP/s", "a round"), disable_numparse=True))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
