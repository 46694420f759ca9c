"""Selects the wheels that fit another machine, and names those that are missing.

pip judges the markers of requirements (`tomli; python_version < "3.11"`) by the machine that it runs on, not
by the one that it downloads for. So they are judged here.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from device_runtime.device.errors import InstallError

OLDEST = (3, 10)
"""Oldest Python that a device may have."""


@dataclass(frozen=True)
class Machine:
    """A platform with a Python: `tags` are the platform tags of wheels that run there, the best first."""

    name: str
    tags: tuple[str, ...]
    python: tuple[int, int]
    markers: Mapping[str, str]

    @property
    def python_text(self) -> str:
        return "{}.{}".format(*self.python)

    def fits(self, wheel: Path) -> bool:
        """Whether a wheel runs there. Raises InstallError for a file name that is not a wheel's."""
        try:
            tags = parse_wheel_filename(wheel.name)[3]
        except InvalidWheelFilename as error:
            raise InstallError(str(error)) from None
        return not tags.isdisjoint(self._accepted())

    def _accepted(self) -> Iterator[Tag]:
        yield from cpython_tags(self.python, platforms=self.tags)
        yield from compatible_tags(self.python, f"cp{self.python[0]}{self.python[1]}", self.tags)


def _linux(machine: str, oldest: int, *older: str) -> tuple[str, ...]:
    """Tags of glibc from 2.28 (Debian 10, Ubuntu 20.04) down to 2.`oldest`, then `older`."""
    return (*(f"manylinux_2_{minor}_{machine}" for minor in range(28, oldest - 1, -1)), *older)


PLATFORMS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "linux-aarch64": (
        _linux("aarch64", 17, "manylinux2014_aarch64"),
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    ),
    "linux-x86_64": (
        _linux("x86_64", 5, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    ),
    "macos-arm64": (
        tuple(mac_platforms((14, 0), "arm64")),
        {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    ),
}
"""By name: platform tags, and the platform's values for markers of requirements."""


def machine(platform: str, python: str) -> Machine:
    """The machine of a platform. Raises InstallError if it is unknown, or Python is not valid or too old."""
    if platform not in PLATFORMS:
        raise InstallError(f"no wheels are known for {platform!r}; there are {', '.join(PLATFORMS)}")
    if not (match := re.fullmatch(r"(\d+)\.(\d+)", python)):
        raise InstallError(f"{python!r} is no version of Python, as 3.11 is")
    version = int(match[1]), int(match[2])
    if version < OLDEST:
        raise InstallError(f"Python {python} is too old: device-runtime needs {OLDEST[0]}.{OLDEST[1]}")
    tags, environment = PLATFORMS[platform]
    markers = {
        **environment,
        "os_name": "posix",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
    }
    return Machine(platform, tags, version, markers)


@dataclass(frozen=True)
class Wheel:
    """The metadata of a wheel."""

    name: str
    requires: tuple[Requirement, ...]
    extras: frozenset[str]


def read(path: Path) -> Wheel:
    """The metadata of a wheel. Raises InstallError for a file that is not one."""
    try:
        with zipfile.ZipFile(path) as archive:
            [inside] = [
                name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
            ]
            headers = HeaderParser().parsestr(archive.read(inside).decode())
        requires = tuple(Requirement(text) for text in headers.get_all("Requires-Dist", []))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InstallError(f"{path} is not a wheel that can be read: {error}") from None
    extras = frozenset(canonicalize_name(extra) for extra in headers.get_all("Provides-Extra", []))
    return Wheel(canonicalize_name(headers["Name"]), requires, extras)


def needed(wheel: Wheel, extras: Iterable[str], where: Machine) -> Iterator[Requirement]:
    """The requirements of a wheel with these extras on that machine, without their markers.

    Extras that only name others of the same wheel are followed.
    """
    todo, done = {"", *map(canonicalize_name, extras)}, {""}
    while todo:
        extra = todo.pop()
        done.add(extra)
        for requirement in wheel.requires:
            marker = requirement.marker
            if marker is not None and not marker.evaluate({**where.markers, "extra": extra}):
                continue
            if canonicalize_name(requirement.name) == wheel.name:
                todo |= {canonicalize_name(name) for name in requirement.extras} - done
            else:
                bare = Requirement(str(requirement))
                bare.marker = None
                yield bare


def missing_requirements(wheels: Iterable[Wheel], root: Requirement, where: Machine) -> list[Requirement]:
    """The requirements of `root`, at any depth, that none of the wheels meets."""
    wheels_by_name = {wheel.name: wheel for wheel in wheels}
    todo, done, missing = [root], set[tuple[str, frozenset[str]]](), dict[str, Requirement]()
    while todo:
        requirement = todo.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in done:
            continue
        done.add(key)
        if wheel := wheels_by_name.get(key[0]):
            todo += needed(wheel, requirement.extras, where)
        else:
            missing[str(requirement)] = requirement
    return list(missing.values())
