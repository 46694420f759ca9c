"""`device-runtime new`: writes a project that exports, simulates and serves as it stands."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from device_runtime.broker.wire.topics import check_task
from device_runtime.content import content

from .new_pictures import SHAPES, TEST, TRAIN, write_pictures


class ProjectError(Exception):
    """Raised when a folder for a new project is not free or cannot be written."""


ERRORS = (ProjectError,)

TEMPLATES = ("README.md", "network.py", "task.toml", "fleet.toml", "scenario.toml")
"""The files of `examples/new/` that a project begins with."""
NAME = "{{name}}"
"""Stands for the project's name in these files."""
PICTURES = "data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the project."""
    parser.add_argument(
        "folder", metavar="NAME", type=Path, help="Write into this folder, which is new or empty."
    )


def run(options: argparse.Namespace) -> int:
    """Writes the project and prints its next commands. Raises TopicError, ProjectError."""
    folder: Path = options.folder
    name = check_task(folder.resolve().name)
    try:
        check_empty(folder)
        write_project(folder, name)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ProjectError(f"{error.filename or folder} cannot be written: {why}") from None
    print(description(folder))
    return 0


def check_empty(folder: Path) -> None:
    """Raise ProjectError if there is anything at this path but an empty folder."""
    if folder.is_dir():
        if any(folder.iterdir()):
            raise ProjectError(f"{folder} is not empty: give the name of a new folder")
    elif folder.exists():
        raise ProjectError(f"{folder} is a file: give the name of a new folder")


def write_project(folder: Path, name: str) -> None:
    """Writes the files and the pictures; the same name writes the same bytes. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in TEMPLATES:
        template = (content("examples") / "new" / file).read_text("utf-8")
        (folder / file).write_text(template.replace(NAME, name), "utf-8")
    write_pictures(folder / PICTURES)


def description(folder: Path) -> str:
    """What was written, and the commands of the README, to be run in the folder."""
    readme = folder / TEMPLATES[0]
    pictures = (TRAIN + TEST) * len(SHAPES)
    next_ = commands(readme.read_text("utf-8"))
    if not _is_here(folder):
        next_.insert(0, f"cd {shlex.quote(str(folder))}")
    return "\n".join((
        f"{folder}: {', '.join(TEMPLATES)}, {PICTURES}/ ({pictures} pictures of {len(SHAPES)} classes)",
        "",
        f"Next, as {readme} explains:",
        "",
        *(f"  {line}" for line in next_),
    ))  # fmt: skip


def _is_here(folder: Path) -> bool:
    try:
        return folder.resolve() == Path.cwd()
    except FileNotFoundError:  # the folder that this was started in is gone
        return False


def commands(readme: str) -> list[str]:
    """The lines of a README that are commands of this program."""
    return [line for line in readme.splitlines() if line.startswith("device-runtime ")]
