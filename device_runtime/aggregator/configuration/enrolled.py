"""Reads an enrolment folder: broker address, signing key, and the keys of enrolled devices."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from device_runtime.aggregator.machine.ports import Agree, EnrolledDevices, Seal
from device_runtime.broker.security.signing import NotTrusted, Signer, verify_message
from device_runtime.broker.servers import register
from device_runtime.broker.servers.broker_folder import (
    AGGREGATOR_KEY,
    DEVICES,
    ISSUED,
    SUCCESSION_SHOWN_S,
    BrokerFolder,
    SetupError,
    write,
)
from device_runtime.broker.wire.messages import Offer, device_message_in
from device_runtime.broker.wire.url import BrokerUrl

log = logging.getLogger(__name__)

AHEAD_S = 60
"""Seconds that the file of issue times is ahead of the clock, so that it is written this rarely."""


def broker_address(enrolment: Path, address: BrokerUrl | None = None) -> BrokerUrl:
    """The URL of the enrolment's broker, or `address` with the enrolment's credential and authority.

    A credential or authority in `address` takes precedence. Raises SetupError.
    """
    url = BrokerFolder(enrolment).for_aggregator
    if address is None:
        return url
    tls = address.tls if address.tls.ca else replace(address.tls, ca=url.tls.ca)
    if address.user is None and address.secure:
        address = replace(address, user=url.user, password=url.password)
    return replace(address, tls=tls)


class IssueClock:
    """Gives the issue times of offers, in seconds since 1970; never goes back, not even after a restart.

    Devices refuse an offer that is older than one they accepted. So a file says up to which time this process
    may issue offers, and the next process begins there if its clock is behind.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises SetupError for a file that cannot be read."""
        self._path, self._clock = path, clock
        self._last = self._promised = self._read()
        behind = self._last - int(clock())
        if behind > AHEAD_S:
            log.warning("this machine's clock is %d s behind the last offer: is its time set?", behind)

    def __call__(self) -> int:
        self._last = max(self._last, int(self._clock()))
        if self._last > self._promised:
            self._promised = self._last + AHEAD_S
            try:
                self._promised = max(self._promised, self._read())  # others may issue by this folder
                write(self._path, f"{self._promised}\n")
            except SetupError as error:
                log.warning("devices may refuse offers after a restart: %s", error)
        return self._last

    def _read(self) -> int:
        try:
            return max(0, int(self._path.read_text("ascii")))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise SetupError(f"{self._path} cannot be read: {error}") from None


def offer_seal(enrolment: Path | None, run_folder: Path, clock: Callable[[], float] = time.time) -> Seal:
    """`Ports.seal`: signs with the enrolment's key, or with the run's own, which is made when first needed.

    `clock` gives seconds since 1970. Raises SetupError, KeyFileError, as does the first call of the result.
    """
    opened = BrokerFolder(enrolment) if enrolment is not None else None
    keys = [opened.signer] if opened else []
    changes = [s for s in opened.successions if s.made + SUCCESSION_SHOWN_S > clock()] if opened else []
    successions = tuple(changes)
    at = enrolment if enrolment is not None and os.access(enrolment, os.W_OK) else run_folder
    clocks: list[IssueClock] = []

    def seal(topic: str, offer: Offer) -> bytes:
        if not keys:
            keys.append(Signer.of_file(run_folder / AGGREGATOR_KEY))
        if not clocks:
            clocks.append(IssueClock(at / ISSUED, clock))
        return keys[0].seal(topic, offer, clocks[0](), successions)

    return seal


def key_agreement(enrolment: Path | None) -> Agree | None:
    """The key agreement by the enrolment's key (`Ports.agree`); None without one. Raises SetupError."""
    return BrokerFolder(enrolment).signer.agree if enrolment is not None else None


class Enrolled(EnrolledDevices):
    """The devices in `devices.json` of an enrolment, read again whenever the file changes."""

    def __init__(self, opened: BrokerFolder) -> None:
        """Raises SetupError for a list that cannot be read."""
        self._opened, self._path = opened, opened.folder / DEVICES
        self._state: tuple[int, int, int] | None = None
        self._keys: dict[str, bytes] = {}
        self._read()

    @property
    def unsigned(self) -> list[str]:
        """Devices without a key, which an earlier version enrolled."""
        return sorted(name for name, key in self._keys.items() if not key)

    def knows(self, device: str) -> bool:
        self._refresh()
        return device in self._keys

    def signs(self, device: str) -> bool:
        return bool(self._keys.get(device))

    def verified_payload(self, device: str, topic: str, payload: bytes) -> bytes:
        self._refresh()
        key = self._keys.get(device)  # once: other tasks refresh too, each in a thread of its own
        if key is None:
            raise NotTrusted(f"message on {topic} refused: {device} is not enrolled in {self._path}")
        return verify_message(key, topic, payload) if key else device_message_in(payload)

    def _refresh(self) -> None:
        """Reads the file again if it was replaced; one that is missing or damaged changes nothing."""
        try:
            if self._stamp() != self._state:
                self._read()
        except (OSError, SetupError) as error:
            if self._state is not None:
                log.warning("the list of enrolled devices is not reloaded: %s", error)
            self._state = None

    def _read(self) -> None:
        try:
            stamp = self._stamp()
        except OSError as error:
            raise SetupError(f"{self._path} cannot be read: {error.strerror or error}") from None
        entries = register.entries(self._opened)
        try:
            self._keys = {entry.name: bytes.fromhex(entry.key) for entry in entries if not entry.revoked}
        except ValueError:
            raise SetupError(f"{self._path} has a key that is not hex digits") from None
        self._state = stamp

    def _stamp(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


def enrolled_devices(enrolment: Path | None) -> EnrolledDevices | None:
    """`Ports.devices`: the enrolled devices; None without an enrolment. Raises SetupError."""
    if enrolment is None:
        return None
    opened = BrokerFolder(enrolment)
    if not (opened.folder / DEVICES).exists():
        log.warning(
            "%s has no %s: whoever runs the broker can send updates in the name of any device. Copy it from "
            "where `device add` is done",
            enrolment,
            DEVICES,
        )
        return None
    devices = Enrolled(opened)
    if unsigned := devices.unsigned:
        log.warning(
            "%d devices sign nothing, so that the broker could send updates in their names: %s. Enrol them "
            "again: `device add NAME --again`",
            len(unsigned),
            ", ".join(unsigned[:5]) + (", ..." if len(unsigned) > 5 else ""),
        )
    return devices
