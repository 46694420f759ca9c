"""What fuzz.py feeds: a reader, the errors it may raise, and sound inputs that are damaged."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LONGEST = 4096
"""Bytes of a random input, at most."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory


@dataclass(frozen=True)
class Target:
    """A decoder, the errors it may raise, and sound inputs."""

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    sound: tuple[bytes, ...]
    share: float = 1.0
    mutate: Callable[[random.Random, tuple[bytes, ...]], bytes] | None = None


class InFile:
    """Hands the bytes to a reader as a file of this name."""

    def __init__(self, name: str, read: Callable[[Path], object]) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self._path, self._read = Path(self._folder.name) / name, read

    def __call__(self, data: bytes) -> object:
        self._path.write_bytes(data)
        return self._read(self._path)


def mutated(draw: random.Random, sound: tuple[bytes, ...]) -> bytes:
    """Random bytes in one of ten; else a sound input, damaged in one to six places."""
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(LONGEST if draw.random() < 0.1 else 64))
    data = bytearray(draw.choice(sound))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(7):
            case 0:
                data[at : at + 1] = bytes((draw.randrange(256),))
            case 1 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 2:
                data[at:at] = draw.randbytes(draw.randint(1, 9))
            case 3:
                del data[at : at + draw.randint(1, 64)]
            case 4:
                data[at:at] = data[at : at + draw.randint(1, 64)]
            case 5:
                del data[at:]
            case _:
                data[at : at + 8] = draw.choice(
                    (b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"99999999", b"[[[[[[[[")
                )
    return bytes(data)
