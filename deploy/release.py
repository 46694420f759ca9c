"""Makes what a release has, from the newest commit: `make release`, or python deploy/release.py FOLDER.

Wheel, sdist, the browser's device as an npm package, the build files of deploy/, a software bill of materials
(CycloneDX) of what a device installs, and SHA256SUMS. Made twice from one commit in one environment, all
files have equal bytes: times are those of the commit (SOURCE_DATE_EPOCH, if it is set).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "device-runtime"
BUILD = "from setuptools import build_meta as b; import sys; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"


def release(folder: Path) -> None:
    """Writes all files of a release into a folder, which must not exist."""
    folder.mkdir(parents=True)
    folder = folder.resolve()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _output("git", "log", "-1", "--format=%ct").strip()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "source")
        with tarfile.open(fileobj=io.BytesIO(_bytes("git", "archive", "HEAD"))) as archive:
            archive.extractall(source, filter="data")
        for part in ("wheel", "sdist"):
            subprocess.run([sys.executable, "-c", BUILD, part, str(folder)], cwd=source, check=True, stdout=2)
            for leftover in ("build", f"{NAME.replace('-', '_')}.egg-info"):
                shutil.rmtree(source / leftover, ignore_errors=True)
        _npm_package(source / "web", folder)
    [sdist] = folder.glob("*.tar.gz")
    _same_each_time(sdist, int(epoch))
    (folder / f"{NAME}-deploy.tar").write_bytes(_bytes("git", "archive", "HEAD", "deploy"))
    _bill(folder / f"{NAME}.cdx.json")
    files = sorted(file for file in folder.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines), "utf-8")


def _npm_package(web: Path, folder: Path) -> None:
    """The browser's device, with the libraries that `make web` has fetched; without them it is left out."""
    if not (ROOT / "web" / "vendor" / ".whole").exists() or not shutil.which("npm"):
        print(
            "the libraries of the page are not here (make web): the npm package is left out", file=sys.stderr
        )
        return
    for part in ("vendor", "node_modules"):
        shutil.copytree(ROOT / "web" / part, web / part, symlinks=True)
    subprocess.run(["node", "npm/pack.js", str(folder)], cwd=web, check=True, stdout=2)
    shutil.rmtree(folder / "package")


def _same_each_time(sdist: Path, epoch: int) -> None:
    """Gives the members of a tar.gz one order, one owner and one time."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as before, tarfile.open(fileobj=packed, mode="w") as after:
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def _bill(file: Path) -> None:
    """What a plain installation consists of here, by the library cyclonedx-bom."""
    lines = sorted(f"{name}=={version(name)}" for name in _installed(NAME, set()) - {NAME})
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON", "-o", str(file), "-"]
    subprocess.run(command, input="\n".join(lines), text=True, check=True)


def _installed(name: str, seen: set[str]) -> set[str]:
    """The names of a package and of all that it needs without extras, as far as they are installed."""
    if name in seen:
        return seen
    seen.add(name)
    for needed in _needed(name):
        _installed(needed, seen)
    return seen


def _needed(name: str) -> Iterator[str]:
    from packaging.requirements import Requirement

    for line in requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield re.sub(r"[-_.]+", "-", requirement.name).lower()


def _bytes(*command: str) -> bytes:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout


def _output(*command: str) -> str:
    return _bytes(*command).decode()


if __name__ == "__main__":
    release(Path(sys.argv[1]))
