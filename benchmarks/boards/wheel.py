"""The wheel of this checkout's last commit, and what installs it."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PIP = ("-m", "pip", "-qq", "--disable-pip-version-check")


def built(folder: Path) -> Path:
    """Made from what is committed, in `folder`, unless it is there."""
    if not (wheels := list(folder.glob("device_runtime-*.whl"))):
        source = folder / "source"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, source], check=True)
        command = [sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source]
        subprocess.run(command, check=True)
        wheels = list(folder.glob("device_runtime-*.whl"))
    return wheels[0]


def environment(
    folder: Path,
    *install: str | Path,
    python: str | Path = sys.executable,
    then: Sequence[Sequence[str]] = (),
) -> Path:
    """Make a virtual environment, unless it is there; returns its folder of programs.

    pip installs `install`, and is then called with each list of arguments in `then`.
    """
    if not (folder / "installed").exists():
        if str(python) == sys.executable:
            venv.create(folder, with_pip=True, clear=True)
        else:
            subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        for words in (("install", "--only-binary=:all:", *install), *then):
            subprocess.run([folder / "bin" / "python", *PIP, *words], check=True)
        (folder / "installed").touch()
    return folder / "bin"


def size(programs: Path) -> int:
    """Bytes of an environment's packages without pip and setuptools, and without bytecode."""
    [site] = (programs.parent / "lib").glob("python*/site-packages")
    return sum(
        path.stat().st_size
        for path in site.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and path.suffix != ".pyc"
        and path.relative_to(site).parts[0].split("-")[0]
        not in ("pip", "setuptools", "_distutils_hack", "pkg_resources")
    )
