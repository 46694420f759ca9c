"""A run that is to go on later: what was learnt. What happened is found again by replaying virtual time.

Nothing that devices do depends on the weights, so a run goes on by going through its rounds again without
training, which takes milliseconds a round, and then training from where it stopped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import tensors
from models.errors import ModelError
from models.tensors import Tensors

from .bases import Base
from .errors import SimulationError

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """After round `round`: the bases that somebody trains from yet, the newest with them, and what is served.

    `history` has (checkpoint, steps) of the base of each round, from the first to the newest.
    """

    round: int
    bases: tuple[Base, ...]
    history: tuple[tuple[int, int], ...]
    served: Tensors


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Durably, in place of an earlier one. Raises SimulationError when the disk does not do as it is told."""
    content = {f"served/{name}": value for name, value in checkpoint.served.items()}
    for base in checkpoint.bases:
        content |= {f"{base.number}/{name}": value for name, value in base.weights.items()}
    content["history"] = np.array(checkpoint.history, np.int32)
    beside = folder / f".{FILE}"
    try:
        with beside.open("wb") as file:
            file.write(tensors.encode(content))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / FILE)
    except OSError as error:
        raise SimulationError(f"cannot write {folder / FILE}: {error.strerror or error}") from None


def load(folder: Path) -> Checkpoint | None:
    """What was saved last; None where nothing was. Raises SimulationError for a file that is damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return _read(tensors.decode(path.read_bytes()))
    except (ModelError, LookupError, TypeError, ValueError, OSError) as error:
        raise SimulationError(f"{path} is not a checkpoint ({error}): remove it to begin again") from None


def _read(content: Tensors) -> Checkpoint:
    history = tuple((int(a), int(b)) for a, b in content["history"])
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for key, value in content.items():
        owner, _, name = key.partition("/")
        if name:
            parts.setdefault(owner, {})[name] = value
    served = parts.pop("served")
    bases = tuple(Base(n, parts[str(n)], *history[n - 1]) for n in sorted(map(int, parts)))
    return Checkpoint(len(history) - 1, bases, history, served)
