"""Messages between a device and its worker process, typed, over a socket pair.

Each is MessagePack, with its length in four bytes before it. Models, samples and large updates are files that
both sides read.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from device_runtime.broker.wire.messages import Contribution, Hello, Plan
from device_runtime.client.connection.offers import OpenRound
from device_runtime.client.energy import Meter
from device_runtime.client.errors import WorkerDeath
from device_runtime.client.personal.wish import PersonalWish
from device_runtime.client.policy.rules import ANYTHING, AllowList
from device_runtime.client.settings import Settings
from device_runtime.client.training.emulation import Emulation
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.data import Place
from device_runtime.profiles import DeviceProfile
from device_runtime.strategies.terms.accountant import PrivacyBudget

from .base import Bundles, RoundPreview, WorkResult

LENGTH = struct.Struct("!I")
CHUNK = 64 * 1024
M = TypeVar("M")


class WorkerGone(Exception):
    """The other side has ended."""


class Rpc(Generic[M]):
    """One end of the connection. `kind` is the union of the messages that it receives."""

    def __init__(self, end: socket.socket, kind: Any) -> None:
        self._end = end
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind, dec_hook=_path)
        self._came = bytearray()
        self._spoke_s = time.monotonic()

    @property
    def quiet_s(self) -> float:
        """Seconds since either side sent a message; 0 if one waits to be read."""
        return 0.0 if self._came or self._readable(0.0) else time.monotonic() - self._spoke_s

    def say(self, message: Request | WorkerMessage) -> None:
        """Send a message. Raises WorkerGone."""
        data = self._encoder.encode(message)
        self._spoke_s = time.monotonic()
        try:
            self._end.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            raise WorkerGone from None

    def hear(self, timeout_s: float | None = None) -> M | None:
        """The next message; None if none has come in time. Raises WorkerGone."""
        while (message := self._whole()) is None:
            if not self._readable(timeout_s):
                return None
            try:
                came = self._end.recv(CHUNK)
            except OSError:
                raise WorkerGone from None
            if not came:
                raise WorkerGone
            self._came += came
        self._spoke_s = time.monotonic()
        return message

    def close(self) -> None:
        """Close the connection, which the other side notices."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _readable(self, timeout_s: float | None) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def _whole(self) -> M | None:
        if len(self._came) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._came)
        end = LENGTH.size + length
        if len(self._came) < end:
            return None
        data = bytes(self._came[LENGTH.size : end])
        del self._came[:end]
        return self._decoder.decode(data)


def _path(_kind: type, given: object) -> Path:
    """Decodes a path, which is sent as text: the only type here that msgspec does not know."""
    return Path(str(given))


# Requests of the device (`Asked`) and messages of the worker (`Said`).


class WorkTerms(msgspec.Struct, frozen=True, tag=True):
    """The first message: the part of Settings that concerns work, and the name of the meter."""

    name: str
    place: Place
    folder: Path
    engine: EngineSettings
    meter: str
    personal: PersonalWish
    memory_bytes: int | None = None
    owner: PrivacyBudget | None = None
    pretended: DeviceProfile | None = None
    slow: float = 1.0
    disk_bytes: int | None = None
    allowed: AllowList = ANYTHING

    @classmethod
    def of(cls, given: Settings, meter: str, held_bytes: int) -> WorkTerms:
        """`held_bytes` are held by this process, so the worker may not use them.

        Paths are made absolute, as the worker runs in another folder.
        """
        pretence, most = given.pretence, given.memory_bytes
        return cls(
            given.name,
            Place.of(given.data).absolute(),
            given.folder.absolute(),
            given.engine,
            meter,
            given.personal,
            None if most is None else max(1, most - held_bytes),
            given.owner,
            pretence.profile if pretence else None,
            pretence.slow if pretence else 1.0,
            given.disk_bytes,
            given.allowed,
        )

    def settings(self, meter: Meter | None) -> Settings:
        pretence = None if self.pretended is None else Emulation(self.pretended, self.slow)
        known = Settings(self.name, self.place, self.folder, pretence, self.memory_bytes, self.engine)
        return replace(
            known,
            owner=self.owner,
            meter=meter,
            personal=self.personal,
            disk_bytes=self.disk_bytes,
            allowed=self.allowed,
        )


class LookAt(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.look`; `seen` as in LinkSpeed."""

    current: OpenRound
    seen: tuple[float | None, float | None]


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.prepare`."""

    current: OpenRound


class WorkOrder(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.work`.

    `waiting`: rounds of this run whose contributions have no receipt; `lost_s` as in Hours.
    """

    current: OpenRound
    seen: tuple[float | None, float | None]
    waiting: tuple[int, ...]
    lost_s: float
    deaths: tuple[WorkerDeath, ...] = ()


class After(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.after`."""

    current: OpenRound


class KeepModel(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.keep`."""

    over: OpenRound


class Settle(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.settle`."""

    message: Contribution
    counts: bool


class PutDown(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.put_down`."""


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """Answer to a Beat. `over`: why the work must end, if its round closed while it was paused."""

    lost_s: float
    over: str = ""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Progress from 0 to 1. The worker waits for the answer whether to go on."""

    done: float


class Decided(msgspec.Struct, frozen=True, tag=True):
    """See BackendListener.decided."""

    plan: Plan
    room_bytes: float


class Reported(msgspec.Struct, frozen=True, tag=True):
    """See BackendListener.made."""

    made: WorkResult


class KnownTask(msgspec.Struct, frozen=True):
    """The task that the worker knows, with its hello; the device fills in the boot."""

    bundles: Bundles
    hello: Hello


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A request is done.

    `look` answers LookAt, `over` says whether a WorkOrder is finished; `error` has the name of an error's
    class and its text. `cpu_s`: processor seconds of the worker so far.
    """

    known: KnownTask | None = None
    look: RoundPreview | None = None
    over: bool = True
    error: tuple[str, str] | None = None
    cpu_s: float = 0.0


Request = WorkTerms | LookAt | Prepare | WorkOrder | After | KeepModel | Settle | PutDown | GoOn
WorkerMessage = Beat | Decided | Reported | Ended
