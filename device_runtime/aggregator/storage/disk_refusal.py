"""Remembers that the disk refuses contributions, so that nobody else is blamed for their absence."""

from __future__ import annotations

import logging
from pathlib import Path

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.errors import NoRoom
from device_runtime.system_errors import is_of_disk

log = logging.getLogger(__name__)


class DiskRefusal:
    """`why`: why the disk of a run folder takes no contributions; empty if it does, or none has come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.why = ""

    def refused(self, error: Exception) -> None:
        """A contribution was dropped for an error; its device sends it again. Logged once in a row."""
        if not isinstance(error, (NoRoom, RunFolderError)) and not is_of_disk(error):
            return
        if not self.why:
            log.warning("%s", self._text(str(error)))
        self.why = str(error)

    def took(self) -> None:
        """A contribution was stored."""
        if self.why:
            log.info("run folder %s takes contributions again", self._folder)
        self.why = ""

    def check(self) -> None:
        """Raises RunFolderError while it refuses: a deadline without contributions is then nobody's fault."""
        if self.why:
            raise RunFolderError(f"{self._text(self.why)} The same command goes on with the round")

    def _text(self, why: str) -> str:
        advice = "" if "free some space" in why else " Free some space there."
        return f"the disk of run folder {self._folder} takes no contributions: {why}.{advice}"
