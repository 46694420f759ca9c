"""`device-runtime new`: writes a project that exports, simulates and serves as it stands."""

from __future__ import annotations

import argparse
import math
import shlex
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from device_runtime.broker.wire.topics import check_task
from device_runtime.content import content


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


SIZE = 16
"""Pixels of a side."""
TRAIN, TEST = 80, 20
"""Pictures of each class for training and for testing."""
NOISE = 12.0
"""Standard deviation of the noise of each value, which is 0 to 255."""

Inside = Callable[[float, float], bool]
SHAPES: dict[str, Inside] = {
    "circle": lambda x, y: x * x + y * y <= 0.8,
    "cross": lambda x, y: min(abs(x), abs(y)) <= 0.3 and max(abs(x), abs(y)) <= 0.95,
    "square": lambda x, y: max(abs(x), abs(y)) <= 0.75,
    "triangle": lambda x, y: -0.9 <= y <= 0.7 and abs(x) <= (y + 0.9) * 0.58,
}
"""Class -> whether a point lies in the shape, whose size is about from -1 to 1 in x and y."""


def write_pictures(folder: Path, seed: int = 0) -> None:
    """Writes `folder`/train/CLASS/NUMBER.png and the same of test; the same seed writes the same bytes."""
    for part, pictures in (("train", TRAIN), ("test", TEST)):
        for name, inside in SHAPES.items():
            place = folder / part / name
            place.mkdir(parents=True)
            draws = Random(f"{seed} {part} {name}")  # noqa: S311
            for number in range(pictures):
                (place / f"{number:03}.png").write_bytes(png(picture(inside, draws)))


def picture(inside: Inside, draws: Random) -> bytes:
    """RGB values of SIZE rows of SIZE pixels: the shape at a random place, turned a little, with noise."""
    radius = draws.uniform(0.28, 0.45) * SIZE
    left, top = (draws.uniform(radius, SIZE - radius) for _ in range(2))
    angle = draws.uniform(-0.3, 0.3)
    cosine, sine = math.cos(angle) / radius, math.sin(angle) / radius
    paper, ink = _colours(draws)
    values = bytearray()
    for row in range(SIZE):
        for column in range(SIZE):
            x, y = column + 0.5 - left, row + 0.5 - top
            drawn = inside(x * cosine + y * sine, y * cosine - x * sine)
            values += bytes(
                min(255, max(0, round(draws.gauss(value, NOISE)))) for value in (ink if drawn else paper)
            )
    return bytes(values)


def png(rgb: bytes) -> bytes:
    """A PNG file of SIZE x SIZE pixels of 3 bytes."""
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)  # 8 bits, RGB
    width = 3 * SIZE
    lines = b"".join(b"\0" + rgb[start : start + width] for start in range(0, len(rgb), width))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _colours(draws: Random) -> tuple[list[int], list[int]]:
    """A dark colour and a light one."""
    paper, ink = ([int(draws.uniform(low, low + 96)) for _ in range(3)] for low in (0, 160))
    return paper, ink
