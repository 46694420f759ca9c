"""Persists what kinds of update keep on the device from one round of a run to the next."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

from device_runtime.broker.wire.durable_files import replace_file, sync_folder
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import TensorError
from device_runtime.strategies.interface.device_half import NO_TENSORS

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"


class StrategyStateStore:
    """What each kind kept in the last two rounds, of one run at a time.

    The first save of a run removes what another run has kept. Two rounds are kept so that a round that is
    worked on again, after a crash, begins with the same state.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, run: str, kind: str, number: int) -> Tensors:
        """The state kept last before round `number`; nothing if there is none, or it is damaged."""
        folder = self._of(run, kind)
        earlier = [round_number for round_number in _rounds(folder) if round_number < number]
        if not earlier:
            return NO_TENSORS
        try:
            return tensors.decode(_path(folder, earlier[-1]).read_bytes())
        except (OSError, TensorError) as error:
            log.warning("ignoring the saved state of %s, which is unreadable: %s", kind, error)
            return NO_TENSORS

    def put(self, run: str, kind: str, number: int, state: Tensors) -> None:
        """Save the state durably for the rounds after `number`. Raises OSError."""
        folder = self._of(run, kind)
        if not folder.parent.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
        if not folder.exists():
            folder.mkdir(parents=True)
            for parent in (folder.parent, self._folder, self._folder.parent):
                sync_folder(parent)
        replace_file(_path(folder, number), tensors.encode(state))
        for old in _rounds(folder)[:-2]:
            _path(folder, old).unlink(missing_ok=True)

    def _of(self, run: str, kind: str) -> Path:
        """The folder of a kind in a run. A run's name comes over the wire: it is not used as a path."""
        return self._folder / hashlib.sha256(run.encode()).hexdigest()[:16] / kind


def _rounds(folder: Path) -> list[int]:
    """The rounds in which something was kept, in order."""
    return sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}"))


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}{SUFFIX}"
