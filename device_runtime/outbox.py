"""Contributions that the aggregator has not receipted yet. On disk, so that they survive the process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from broker.blobs import sync_folder
from broker.messages import Contribution, MessageError, Receipt, decode, encode

log = logging.getLogger(__name__)


class Outbox:
    """One file for each contribution. A body too large for a message lies in the blob store, by its hash."""

    def __init__(self, folder: Path) -> None:
        """Opens, or makes, the folder; what an earlier life left in it is waiting again."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._waiting: dict[int, tuple[Path, Contribution]] = {}
        for path in sorted(folder.glob("*.msg")):
            try:
                message = decode(path.read_bytes(), Contribution)
            except MessageError as error:
                log.warning("dropped %s: %s", path, error)
                path.unlink()
                continue
            self._waiting[message.seq] = (path, message)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Contribution]:
        return iter([message for _, message in self._waiting.values()])

    @property
    def next_seq(self) -> int:
        return max(self._waiting, default=0) + 1

    def add(self, message: Contribution) -> None:
        """Keep it until it is receipted; durable when this returns."""
        path = self._folder / f"{message.seq:08d}.msg"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(encode(message))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(self._folder)
        self._waiting[message.seq] = (path, message)

    def settle(self, receipt: Receipt) -> Contribution | None:
        """Forget the contribution that this receipt answers; None when there is none such."""
        path, message = self._waiting.get(receipt.seq, (None, None))
        if path is None or message is None or message.boot != receipt.boot:
            return None
        del self._waiting[receipt.seq]
        path.unlink(missing_ok=True)
        return message
