"""What kinds of update keep on the device from one round of a run to the next, on its disk."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

from models import tensors
from models.errors import TensorError
from models.tensors import Tensors
from strategies.kind import NOTHING

log = logging.getLogger(__name__)


class Memories:
    """One file for each kind, of one run at a time: those of another go when the first of a run is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, run: str, kind: str) -> Tensors:
        """What was kept last; nothing where nothing was, or what was is damaged."""
        path = self._path(run, kind)
        try:
            return tensors.decode(path.read_bytes())
        except FileNotFoundError:
            return NOTHING
        except (OSError, TensorError) as error:
            log.warning("what %s kept is not readable, and is left out: %s", kind, error)
            return NOTHING

    def put(self, run: str, kind: str, kept: Tensors) -> None:
        """Durably, in place of what was kept before. Raises OSError."""
        path = self._path(run, kind)
        if not path.parent.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            path.parent.mkdir(parents=True)
        beside = path.with_suffix(".tmp")
        with beside.open("wb") as file:
            file.write(tensors.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def _path(self, run: str, kind: str) -> Path:
        """A run's name comes over the wire: it is no path."""
        return self._folder / hashlib.sha256(run.encode()).hexdigest()[:16] / f"{kind}.safetensors"
