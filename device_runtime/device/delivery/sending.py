"""Keeps contributions on disk, sends them whole or in compact form, and takes their receipts.

The device's state machine decides when to send one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.durable_files import private_folder, replace_file
from device_runtime.broker.wire.messages import Contribution, MessageError, Receipt, decode, encode
from device_runtime.device.connection.presence import DeviceMessages
from device_runtime.strategies.kinds.names import EXACT_KINDS
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


class ContributionSender:
    """Sends what waits in the outbox by `messages`."""

    def __init__(self, outbox: Outbox, messages: DeviceMessages) -> None:
        self.outbox = outbox
        self._messages = messages
        self._compact = CompactSender()

    def keep(self, message: Contribution) -> Contribution:
        """Save a contribution, with the boot and number that its receipt will name. Raises OSError."""
        message = msgspec.structs.replace(message, boot=self._messages.boot, seq=self.outbox.next_seq)
        self.outbox.add(message)
        return message

    def send(self, seq: int, first: bool) -> bool:
        """Send a contribution; one of an earlier process gets this one's boot.

        Returns whether it went in compact form, which it may only the `first` time. Raises OSError.
        """
        message = self.outbox.message(seq)
        if message.boot != self._messages.boot:
            message = msgspec.structs.replace(message, boot=self._messages.boot)
            self.outbox.add(message)
        short = self._compact.of(message) if first else None
        if short is None:
            self._compact.sends(message)
            self._messages.contribution(message)
        else:
            self._messages.short(short, message.run)
        return short is not None

    def settle(self, seq: int, receipt: Receipt) -> None:
        """Take a receipt, with which the contribution does not wait any longer, and log it."""
        message = self.outbox.message(seq)
        self.outbox.end(message)
        if counts(receipt):
            self._compact.received(message)
        text = f"{message.kind} {receipt.status}" + (f": {receipt.reason}" if receipt.reason else "")
        if spent := message.metrics.epsilon_milli:
            text += f", epsilon {spent / 1000:.2f} spent of these samples' privacy"
        log.log(logging.INFO if counts(receipt) else logging.WARNING, "round %d: %s", receipt.round, text)

    def close(self, seq: int, over: bool) -> None:
        """Remove a contribution without a receipt; `over`: a later round is open, so it has been counted."""
        message = self.outbox.message(seq)
        if over:
            log.info("round %d: %s: the round is over", message.round, message.kind)
            self.outbox.end(message)
        else:
            about = "round %d: %s was not receipted before the task was done"
            log.warning(about, message.round, message.kind)
            self.outbox.drop(seq)

    def forget(self) -> None:
        """The aggregator may be another process now, which knows nothing of what was sent."""
        self._compact.forget()


def counts(receipt: Receipt) -> bool:
    """Whether the contribution has been accepted, now or before."""
    return receipt.status in ("accepted", "duplicate")


class CompactSender:
    """Decides which contributions are sent in compact form: those like one that the aggregator has.

    Knows the last contribution that was sent whole, and whether this aggregator has received it.
    """

    def __init__(self) -> None:
        self._last: Contribution | None = None
        self._like: Contribution | None = None

    def sends(self, message: Contribution) -> None:
        """A contribution is sent whole: until its receipt comes, the aggregator is not known to have it."""
        self._last, self._like = message, None

    def received(self, message: Contribution) -> None:
        """The contribution has been accepted."""
        if message == self._last and len(encode(message)) <= compact_round.MOST_BYTES:
            self._like = message

    def forget(self) -> None:
        """The aggregator may be another process now."""
        self._last = self._like = None

    def of(self, message: Contribution) -> bytes | None:
        """The contribution in compact form; None if it must go whole.

        What a codec leaves out of an update depends on the fate of the one before, so with such a codec every
        update goes whole, for its receipt. So does a masked update, no part of which repeats.
        """
        like = self._like
        if (
            like is None
            or message.mask is not None
            or message.boot != like.boot
            or message.kind not in EXACT_KINDS
        ):
            return None
        return compact_round.compact_contribution(message, like)
