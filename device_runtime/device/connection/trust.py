"""Decides which offers, rounds and receipts a device acts on."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.broker.wire.messages import MessageError, Offer, Receipt, decode, offer_in

if TYPE_CHECKING:
    from device_runtime.broker.security.signing import SessionKey, Verifier

log = logging.getLogger(__name__)

RUNS = 64
"""Runs whose latest round is remembered."""
TASKS = 64
"""Tasks whose latest offer's time of issue is remembered."""
ISSUED = "issued.json"
"""In the device's folder: when the latest offer of each task was issued."""


class _Kept(msgspec.Struct, frozen=True):
    """The file: the aggregator's key (hex), and for each task the time of issue in seconds since 1970."""

    key: str
    issued: dict[str, int]


class IssueTimes:
    """When the latest offer of each task was issued, by one aggregator's key; kept in a folder, if given."""

    def __init__(self, key: bytes, folder: Path | None) -> None:
        """Reads what an earlier process kept, unless it is of another key or damaged."""
        self._key, self._path = key.hex(), folder / ISSUED if folder else None
        self._issued_at: dict[str, int] = {}
        if self._path and self._path.exists():
            try:
                content = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
                self._issued_at = dict(content.issued) if content.key == self._key else {}
            except (OSError, msgspec.DecodeError, ValueError) as error:
                log.warning("%s cannot be read, old offers cannot be told from new: %s", self._path, error)

    def latest(self, task: str) -> int:
        """Seconds since 1970; 0 where no offer of the task is known."""
        return self._issued_at.get(task, 0)

    def succeed(self, key: bytes) -> None:
        """The times are of this key's offers from now on."""
        self._key = key.hex()
        self._write()

    def note(self, task: str, issued: int) -> None:
        """Note the time of an accepted offer. It is on disk when this returns, unless the disk fails."""
        if issued <= self.latest(task):
            return
        self._issued_at.pop(task, None)
        self._issued_at[task] = issued
        while len(self._issued_at) > TASKS:
            del self._issued_at[next(iter(self._issued_at))]
        self._write()

    def _write(self) -> None:
        if self._path:
            try:
                replace_file(self._path, msgspec.json.encode(_Kept(self._key, self._issued_at)))
            except OSError as error:
                log.warning("cannot write %s: %s", self._path, error.strerror or error)


class Trust:
    """Checks offers. With an aggregator's key (32 bytes) only its offers count, and none older than the last.

    Without a key any offer counts, signed or not. Raises NotTrusted for an invalid key.
    """

    def __init__(
        self,
        key: bytes = b"",
        draw: Callable[[int], bytes] = secrets.token_bytes,
        folder: Path | None = None,
        signs: bool = False,
    ) -> None:
        """`draw` gives so many random bytes; `folder` keeps the time of the latest offers across restarts.

        `signs`: the device signs its hellos, so its aggregator adds a MAC to its receipts.
        """
        self.key = b""
        """Sent in a hello, so that the aggregator can send compact messages with a MAC, unsigned."""
        self._verifier: Verifier | None = None
        self._session_key: SessionKey | None = None
        self._signs = signs
        self._rounds: dict[str, int] = {}
        self._issued = IssueTimes(key, folder if key else None)
        if key:
            from device_runtime.broker.security import signing
            from device_runtime.broker.security.signing import Verifier

            self._own, self._folder = draw(signing.KEY_BYTES), folder
            self._verifier = Verifier(key)
            self._session_key, self.key = self._verifier.agree(self._own), signing.public_key(self._own)

    def next(self, topic: str, run: str, payload: bytes) -> compact_round.CompactOffer:
        """The next round of this run that came on this topic. Raises MessageError as `offer`."""
        content, mac = compact_round.split_mac(payload)
        if self._session_key is None:
            return compact_round.decode_offer(content)
        if not self._session_key.verifies(mac, topic, run, content):
            from device_runtime.broker.security.signing import NotTrusted

            raise NotTrusted(
                f"next round on {topic} refused: it is not said to this device, for run {run!r}, by the "
                "aggregator that it is enrolled with"
            )
        next_round = compact_round.decode_offer(content)
        self._rounds[run] = max(self._rounds.get(run, 0), next_round.round)
        return next_round

    def mac(self, topic: str, run: str, payload: bytes) -> bytes:
        """The MAC of a payload of this device on this topic, in this run; empty without a session key."""
        return self._session_key.mac(topic, run, payload) if self._session_key else b""

    def receipt(self, topic: str, payload: bytes) -> Receipt:
        """The receipt that came on this topic. Raises MessageError as `offer`."""
        if not (self._signs and self._session_key):
            return decode(payload, Receipt)
        content, mac = payload[: -compact_round.MAC_BYTES], payload[-compact_round.MAC_BYTES :]
        if not self._session_key.verifies(mac, topic, "", content):
            from device_runtime.broker.security.signing import NotTrusted

            raise NotTrusted(
                f"receipt on {topic} refused: it is not said to this device by the aggregator that it is "
                "enrolled with"
            )
        return decode(content, Receipt)

    def offer(self, topic: str, payload: bytes, retained: bool = False) -> Offer:
        """The offer that came on this topic. Raises MessageError with the reason why it is refused.

        Rounds of a run only go up, and so do times of issue: an earlier one was recorded by somebody and is
        sent again. A round that is `retained` only says that there is a task.
        """
        if self._verifier is None:
            return offer_in(payload)
        before = self._verifier.public
        offer, issued = self._verifier.open(topic, payload)
        if self._verifier.public != before:
            self._succeed(self._verifier, before)
        is_sign, newest = retained and not offer.done, self._issued.latest(offer.task)
        if issued < newest and not is_sign:
            raise MessageError(
                f"offer of round {offer.round} of {offer.task!r} refused: it was issued at {issued}, and one "
                f"of {newest} was taken before. Either it is sent again by somebody who kept it, or the "
                "aggregator's clock went back"
            )
        latest = self._rounds.pop(offer.run, 0)
        self._rounds[offer.run] = max(latest, offer.round)
        while len(self._rounds) > RUNS:
            del self._rounds[next(iter(self._rounds))]
        if 0 < offer.round < latest and not is_sign:
            raise MessageError(
                f"offer of round {offer.round} refused: round {latest} of this run was offered before"
            )
        self._issued.note(offer.task, issued)
        return offer

    def _succeed(self, verifier: Verifier, before: bytes) -> None:
        """The aggregator has a new key, which the old one has signed.

        Only the new key counts from now on, after a restart too.
        """
        from device_runtime.broker.security.enrolment import Enrolment, EnrolmentError

        new = verifier.public
        log.warning("the aggregator's key is now %s, as its key %s says", new[:8].hex(), before[:8].hex())
        self._session_key = verifier.agree(self._own)
        try:
            enrolment = Enrolment.load(self._folder) if self._folder else None
            if self._folder and enrolment and enrolment.key == before:
                msgspec.structs.replace(enrolment, key=new).save(self._folder)
        except EnrolmentError as error:
            log.warning("the aggregator's new key is not kept: %s", error)
            return
        self._issued.succeed(new)  # the next process reads the times of the enrolment's key
