"""Persists how far the device has replayed the step log, while the process that had it in memory is gone."""

from __future__ import annotations

import logging
from pathlib import Path

from device_runtime.broker.wire.messages import Base
from device_runtime.broker.wire.partial_blob import replace_file
from device_runtime.models.bundles import tensors
from device_runtime.models.errors import TensorError

from .base_route import ReplayState

log = logging.getLogger(__name__)


SUFFIX = ".safetensors"


class ReplayStates:
    """One at a time. A damaged one does no harm: what comes of it is not the base that was named."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, stand: ReplayState) -> None:
        """In place of any other. A disk that refuses is warned of: then the way begins at the checkpoint."""
        path = self._folder / f"{stand.line.hex()}.{stand.at}{SUFFIX}"
        if path.exists():
            return
        try:
            self._folder.mkdir(exist_ok=True)
            replace_file(path, tensors.encode(stand.weights))
            self._drop(path)
        except OSError as error:
            log.warning("where this device stands cannot be kept: %s", error)

    def get(self, base: Base) -> ReplayState | None:
        """The one that is kept, if it is on the way to this base."""
        for path in self._folder.glob(f"{base.line.hex()}.*{SUFFIX}"):
            at = path.name.removesuffix(SUFFIX).rpartition(".")[2]
            if at.isdecimal() and int(at) <= base.at:
                try:
                    return ReplayState(base.line, int(at), tensors.decode(path.read_bytes()))
                except (OSError, TensorError) as error:
                    log.warning("where this device stood is not readable: %s", error)
        return None

    def drop(self) -> None:
        """It led to nothing."""
        self._drop(None)

    def _drop(self, but: Path | None) -> None:
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path != but:
                path.unlink(missing_ok=True)
