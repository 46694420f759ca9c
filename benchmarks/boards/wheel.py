"""The wheel of this checkout's last commit, and what installs it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PIP = ("-m", "pip", "-qq", "--disable-pip-version-check")


def built(folder: Path) -> Path:
    """Made from what is committed, in `folder`, unless it is there."""
    if not (there := list(folder.glob("device_runtime-*.whl"))):
        source = folder / "source"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, source], check=True)
        command = [sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source]
        subprocess.run(command, check=True)
        there = list(folder.glob("device_runtime-*.whl"))
    return there[0]


def environment(folder: Path, *install: str | Path, python: str | Path = sys.executable) -> Path:
    """A virtual environment of that Python with what pip installs by these words, unless it is there. Gives
    its folder of programs.
    """
    if not (folder / "installed").exists():
        if str(python) == sys.executable:
            venv.create(folder, with_pip=True, clear=True)
        else:
            subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        command = [folder / "bin" / "python", *PIP, "install", "--only-binary=:all:", *install]
        subprocess.run(command, check=True)
        (folder / "installed").touch()
    return folder / "bin"
