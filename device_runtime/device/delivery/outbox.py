"""Contributions without a receipt, on disk so that they survive the process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from device_runtime.broker.wire.durable_files import private_folder, replace_file
from device_runtime.broker.wire.messages import Contribution, MessageError, Receipt, decode, encode
from device_runtime.system_errors import disk_reason, is_of_disk

log = logging.getLogger(__name__)


class Outbox:
    """One file for each contribution. A body too large for a message lies in the blob store, by its hash.

    The last contribution with a receipt stays as `settled`, so that a restarted process does not repeat its
    round. What a full disk does not take is held in memory until `save` finds room: it is sent meanwhile, and
    only a restart would do its round again.
    """

    def __init__(self, folder: Path) -> None:
        """Opens or makes the folder; contributions of an earlier process wait again."""
        self._folder = folder
        private_folder(folder)
        self._waiting: dict[int, tuple[Path, Contribution]] = {}
        self._unsaved: set[int] = set()
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
        """A number never used by this process: a second receipt of an earlier one may still come."""
        return self._last_seq + 1

    @property
    def settled(self) -> Contribution | None:
        """The last contribution with a receipt."""
        return self._settled

    def message(self, seq: int) -> Contribution:
        """The contribution of this number. Raises KeyError."""
        return self._waiting[seq][1]

    def add(self, message: Contribution) -> None:
        """Keep it until it is receipted; durable when this returns, if the disk has room. Raises OSError."""
        path = self._folder / f"{message.seq:08d}.msg"
        try:
            replace_file(path, encode(message))
        except OSError as error:
            if not is_of_disk(error):
                raise
            log.warning("%s: %s; it is held in memory until there is room", path, disk_reason(error))
            self._unsaved.add(message.seq)
        self._waiting[message.seq] = (path, message)
        self._last_seq = max(self._last_seq, message.seq)

    def save(self) -> None:
        """Write what a full disk did not take before, if there is room now."""
        for seq in sorted(self._unsaved & self._waiting.keys()):
            path, message = self._waiting[seq]
            try:
                replace_file(path, encode(message))
            except OSError:
                return
            log.info("%s is written: there is room again", path)
            self._unsaved.discard(seq)

    def named(self, receipt: Receipt) -> Contribution | None:
        """The contribution that this receipt is for; None if none waits for it.

        The receipt of a compact contribution (see `compact_round`) has no number, and names only the round.
        """
        _, message = self._waiting.get(receipt.seq or self._seq_of(receipt.round), (None, None))
        fits = message and (message.boot, message.round) == (receipt.boot, receipt.round)
        return message if fits else None

    def end(self, message: Contribution) -> None:
        """Remove this contribution from those that wait: its round is answered."""
        path, _ = self._waiting.pop(message.seq)
        last = self._settled
        older = last is not None and last.run == message.run and last.round > message.round
        if not older:
            self._settled = message
        try:
            if older:
                path.unlink(missing_ok=True)
            elif message.seq not in self._unsaved:
                path.replace(self._folder / "settled")
        except OSError as error:  # it is sent again after a restart, and has its receipt then
            log.warning("%s cannot be removed: %s", path, disk_reason(error))
        self._unsaved.discard(message.seq)

    def _seq_of(self, number: int) -> int:
        """Number of the latest contribution to a round: an older one may be of another task."""
        return max((seq for seq, (_, message) in self._waiting.items() if message.round == number), default=0)

    def drop(self, seq: int) -> None:
        """Remove a contribution that nobody waits for any more."""
        path, _ = self._waiting.pop(seq)
        self._unsaved.discard(seq)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, disk_reason(error))


def _read(path: Path) -> Contribution | None:
    """The message in a file; if it is not one, the file is removed and None returned."""
    try:
        return decode(path.read_bytes(), Contribution)
    except MessageError as error:
        log.warning("dropped %s: %s", path, error)
        with suppress(OSError):
            path.unlink()
    except OSError as error:
        log.warning("%s cannot be read, and is not sent: %s", path, disk_reason(error))
    return None
