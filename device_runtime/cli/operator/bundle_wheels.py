"""`device-runtime bundle-wheels`: downloads all wheels that a device needs, to install it offline."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.requirements import InvalidRequirement, Requirement

from device_runtime.device.errors import InstallError
from device_runtime.device.service.wheel_selection import (
    PLATFORMS,
    Machine,
    Wheel,
    machine,
    missing_requirements,
    needed,
    read,
)

OURS = "device-runtime"
DEPTH = 20
"""The most downloads: each brings the wheels that those of the last one require."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="Put the wheels into this folder.")
    add("--platform", choices=tuple(PLATFORMS), help="Choose the platform of the device (default: this one).")
    add("--python", metavar="3.11", help="Choose the Python of the device (default: this one's).")
    add("--extras", default="", metavar="A,B", help="Add these extras of device-runtime, such as images.")
    add(
        "--wheel",
        type=Path,
        help="Take this wheel of device-runtime (default: made of what is installed here).",
    )
    add(
        "--pin",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help="Take this version of a package; may be repeated.",
    )


def run(options: argparse.Namespace) -> int:
    """Raises InstallError."""
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    here = f"{system}-{platform.machine()}"
    where = machine(options.platform or here, options.python or "{}.{}".format(*sys.version_info[:2]))
    extras = [extra for extra in options.extras.split(",") if extra]
    options.out.mkdir(parents=True, exist_ok=True)
    own = _own_wheel(options.wheel, options.out)
    _fill(options.out, where, read(own), extras, [_requirement(text) for text in options.pin])
    size = sum(path.stat().st_size for path in _fitting(options.out, where))
    named = f"{OURS}[{','.join(extras)}]" if extras else OURS
    print(f"{len(_fitting(options.out, where))} wheels of {size / 1e6:.1f} MB in {options.out}, for", end=" ")
    print(f"{where.name} with Python {where.python_text}. There, without a network:\n")
    print(f"  python{where.python_text} -m venv device")
    print(f"  device/bin/pip install --no-index --find-links {options.out.name} '{named}'")
    return 0


def _fill(out: Path, where: Machine, own: Wheel, extras: Sequence[str], pins: Sequence[Requirement]) -> None:
    """Download wheels, then the wheels that they require, until none is missing. Raises InstallError."""
    if unknown := sorted(set(extras) - own.extras):
        raise InstallError(f"{OURS} has no extra {unknown[0]!r}; it has {', '.join(sorted(own.extras))}")
    requirements, root = [*needed(own, extras, where), *pins], Requirement(OURS)
    root.extras = set(extras)
    for _ in range(DEPTH):
        _download(out, where, requirements)
        requirements = missing_requirements(map(read, _fitting(out, where)), root, where)
        if not requirements:
            return
    raise InstallError(f"still lacking after {DEPTH} downloads: {', '.join(map(str, requirements))}")


def _download(out: Path, where: Machine, requirements: Sequence[Requirement]) -> None:
    tags = [part for tag in where.tags for part in ("--platform", tag)]
    _pip(
        "download",
        *("--only-binary=:all:", "--implementation", "cp", "--python-version", where.python_text),
        *("--dest", str(out), *tags, *map(str, requirements)),
    )


def _own_wheel(file: Path | None, out: Path) -> Path:
    """The wheel of device-runtime in `out`: the given one, or one that pip makes of `_source`."""
    if file is not None:
        read(file)
        return file if file.parent.samefile(out) else Path(shutil.copy(file, out))
    _pip("wheel", "--no-deps", "--wheel-dir", str(out), _source())
    [wheel, *_] = sorted(out.glob("device_runtime-*.whl"), key=lambda path: -path.stat().st_mtime)
    return wheel


def _source() -> str:
    """The source of pip's wheel: where this package was installed from, or its name and version."""
    here = metadata.distribution(OURS)
    url = urlparse(json.loads(here.read_text("direct_url.json") or "{}").get("url", ""))
    local = Path(unquote(url.path)) if url.scheme == "file" else None
    return str(local) if local and local.exists() else f"{OURS}=={here.version}"


def _pip(*arguments: str) -> None:
    """Run pip. Raises InstallError with the last line that pip printed."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if not line.startswith("WARNING")]
        raise InstallError(f"pip {arguments[0]}: {lines[-1] if lines else f'ended with {ended.returncode}'}")


def _fitting(out: Path, where: Machine) -> list[Path]:
    return [path for path in sorted(out.glob("*.whl")) if where.fits(path)]


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise InstallError(f"--pin {text}: {error}") from None
