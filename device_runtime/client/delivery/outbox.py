"""Contributions that the aggregator has not receipted yet. On disk, so that they survive the process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from device_runtime.broker.wire.blobs import sync_folder
from device_runtime.broker.wire.messages import Contribution, MessageError, Receipt, decode, encode

log = logging.getLogger(__name__)


class Outbox:
    """One file for each contribution. A body too large for a message lies in the blob store, by its hash.

    The last one that was receipted stays, as `settled`, so that a later life of the process does not do
    that round's work again.
    """

    def __init__(self, folder: Path) -> None:
        """Opens, or makes, the folder; what an earlier life left in it is waiting again."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._waiting: dict[int, tuple[Path, Contribution]] = {}
        for path in sorted(folder.glob("*.msg")):
            if message := _read(path):
                self._waiting[message.seq] = (path, message)
        last = folder / "settled"
        self._settled = _read(last) if last.exists() else None
        self._last_seq = max(self._waiting, default=0)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Contribution]:
        return iter([message for _, message in self._waiting.values()])

    @property
    def next_seq(self) -> int:
        """Never one that was used in this life: a second receipt of an earlier one may still come."""
        return self._last_seq + 1

    def answered(self, run: str, number: int) -> bool:
        """Whether a contribution to this round waits, or is the last that was receipted."""
        known = [message for _, message in self._waiting.values()]
        known += [self._settled] if self._settled else []
        return any((message.run, message.round) == (run, number) for message in known)

    def add(self, message: Contribution) -> None:
        """Keep it until it is receipted; durable when this returns. Raises OSError."""
        path = self._folder / f"{message.seq:08d}.msg"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(encode(message))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(self._folder)
        self._waiting[message.seq] = (path, message)
        self._last_seq = max(self._last_seq, message.seq)

    def answering(self, receipt: Receipt) -> Contribution | None:
        """The contribution that this receipt ends; None when there is none such, or it is to come again."""
        return None if receipt.retry_after_s else self.named(receipt)

    def named(self, receipt: Receipt) -> Contribution | None:
        """The contribution that this receipt is for; None when there is none such. That of a short one (see
        `small`) has no number, and names the round alone.
        """
        _, message = self._waiting.get(receipt.seq or self._seq_of(receipt.round), (None, None))
        fits = message and (message.boot, message.round) == (receipt.boot, receipt.round)
        return message if fits else None

    def settle(self, receipt: Receipt) -> Contribution | None:
        """Forget the contribution that this receipt answers, and return it."""
        message = self.answering(receipt)
        if message is not None:
            self.end(message)
        return message

    def end(self, message: Contribution) -> None:
        """This one waits no longer, and its round is answered."""
        path, _ = self._waiting.pop(message.seq)
        last = self._settled
        if last and last.run == message.run and last.round > message.round:
            path.unlink(missing_ok=True)
        else:
            path.replace(self._folder / "settled")
            self._settled = message

    def _seq_of(self, number: int) -> int:
        """Of the latest: an older one may be of another task."""
        return max((seq for seq, (_, message) in self._waiting.items() if message.round == number), default=0)

    def drop(self, seq: int) -> None:
        """Forget a contribution that nobody waits for any more."""
        path, _ = self._waiting.pop(seq)
        path.unlink(missing_ok=True)


def _read(path: Path) -> Contribution | None:
    """The message in a file; None, and the file is dropped, when it is not one."""
    try:
        return decode(path.read_bytes(), Contribution)
    except MessageError as error:
        log.warning("dropped %s: %s", path, error)
        path.unlink()
        return None
