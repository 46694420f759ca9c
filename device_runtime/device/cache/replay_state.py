"""Persists how far the device has replayed the step log, for a restart of its process."""

from __future__ import annotations

import logging
from pathlib import Path

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.broker.wire.messages import Base
from device_runtime.models.bundles import tensors
from device_runtime.models.errors import TensorError

from .base_route import ReplayState

log = logging.getLogger(__name__)


SUFFIX = ".safetensors"


class ReplayStates:
    """Stores one state at a time.

    A damaged state does no harm: the base made from it fails the check of its hash.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, state: ReplayState) -> None:
        """Save the state in place of any other. If the disk fails, a restart begins at the checkpoint."""
        path = self._folder / f"{state.line.hex()}.{state.at}{SUFFIX}"
        if path.exists():
            return
        try:
            self._folder.mkdir(exist_ok=True)
            replace_file(path, tensors.encode(state.weights))
            self._drop(path)
        except OSError as error:
            log.warning("the replay state cannot be saved: %s", error)

    def get(self, base: Base) -> ReplayState | None:
        """The saved state, if it lies on the way to this base."""
        for path in self._folder.glob(f"{base.line.hex()}.*{SUFFIX}"):
            at = path.name.removesuffix(SUFFIX).rpartition(".")[2]
            if at.isdecimal() and int(at) <= base.at:
                try:
                    return ReplayState(base.line, int(at), tensors.decode(path.read_bytes()))
                except (OSError, TensorError) as error:
                    log.warning("the replay state cannot be read: %s", error)
        return None

    def drop(self) -> None:
        """Remove the state: its base failed the check."""
        self._drop(None)

    def _drop(self, but: Path | None) -> None:
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path != but:
                path.unlink(missing_ok=True)
