"""The certificate of HTTPS, which is renewed on the disk while the service runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_S = 30
"""Seconds between looks at the files."""


class Certificate:
    """Keeps `context` at what is in `cert` and `key`: connections from then on get the new one."""

    def __init__(self, cert: Path, key: Path, context: ssl.SSLContext) -> None:
        """`context` has what is in the files now."""
        self._files, self._context = (cert, key), context
        self._seen = self._state()

    async def look(self) -> None:
        """Take what has changed. Files that are no pair, or not yet, leave all as it was."""
        state = self._state()
        if state == self._seen:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self._context.load_cert_chain(*self._files)
        except OSError as error:
            log.warning(
                "http.cert, http.key have changed and cannot be used, the ones before stay: %s", error
            )
        else:
            log.info("http.cert, http.key have changed, and are served")
        self._seen = state

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """What tells a file from another that takes its place."""
        try:
            found = [path.stat() for path in self._files]
        except OSError:
            return ()
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)
