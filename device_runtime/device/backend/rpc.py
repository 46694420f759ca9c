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
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.energy import Meter
from device_runtime.device.errors import WorkerDeath
from device_runtime.device.policy.rules import ANYTHING, AllowList
from device_runtime.device.training.settings import PersonalModelSettings, Settings
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.data import SampleSource
from device_runtime.profiles import DeviceProfile
from device_runtime.profiles.device import Emulation
from device_runtime.strategies.terms.accountant import PrivacyBudget

from .base import Bundles, RoundPreview, WorkResult

LENGTH = struct.Struct("!I")
CHUNK = 64 * 1024
M = TypeVar("M")


class WorkerGone(Exception):
    """The other side has ended."""


class Rpc(Generic[M]):
    """One end of the connection. `kind` is the union of the messages that it receives."""

    def __init__(self, connected: socket.socket, kind: Any) -> None:
        self._socket = connected
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind, dec_hook=_path)
        self._received = bytearray()
        self._last_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since either side sent a message; 0 if one waits to be read."""
        return 0.0 if self._received or self._readable(0.0) else time.monotonic() - self._last_at

    def send(self, message: Request | WorkerMessage) -> None:
        """Send a message. Raises WorkerGone."""
        data = self._encoder.encode(message)
        self._last_at = time.monotonic()
        try:
            self._socket.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            raise WorkerGone from None

    def receive(self, timeout_s: float | None = None) -> M | None:
        """The next message; None if none has come in time. Raises WorkerGone."""
        while (message := self._complete_message()) is None:
            if not self._readable(timeout_s):
                return None
            try:
                data = self._socket.recv(CHUNK)
            except OSError:
                raise WorkerGone from None
            if not data:
                raise WorkerGone
            self._received += data
        self._last_at = time.monotonic()
        return message

    def close(self) -> None:
        """Close the connection, which the other side notices."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _readable(self, timeout_s: float | None) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def _complete_message(self) -> M | None:
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        end = LENGTH.size + length
        if len(self._received) < end:
            return None
        data = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return self._decoder.decode(data)


def _path(_kind: type, text: object) -> Path:
    """Decodes a path, which is sent as text: the only type here that msgspec does not know."""
    return Path(str(text))


# Requests of the device (`Request`) and messages of the worker (`WorkerMessage`).


class WorkTerms(msgspec.Struct, frozen=True, tag=True):
    """The first message: the part of Settings that concerns work, and the name of the meter."""

    name: str
    place: SampleSource
    folder: Path
    engine: EngineSettings
    meter: str
    personal: PersonalModelSettings
    memory_bytes: int | None = None
    owner: PrivacyBudget | None = None
    emulated: DeviceProfile | None = None
    slow: float = 1.0
    disk_bytes: int | None = None
    allowed: AllowList = ANYTHING
    elsewhere_bytes: int = 0
    choose: str = ""

    @classmethod
    def of(cls, settings: Settings, meter: str, held_bytes: int) -> WorkTerms:
        """`held_bytes` are held by this process, so the worker may not use them.

        Paths are made absolute, as the worker runs in another folder.
        """
        emulation, most = settings.emulation, settings.memory_bytes
        return cls(
            settings.name,
            SampleSource.of(settings.data).absolute(),
            settings.folder.absolute(),
            settings.engine,
            meter,
            settings.personal,
            None if most is None else max(1, most - held_bytes),
            settings.owner,
            emulation.profile if emulation else None,
            emulation.slow if emulation else 1.0,
            settings.disk_bytes,
            settings.allowed,
            held_bytes,
            settings.choose,
        )

    def settings(self, meter: Meter | None) -> Settings:
        emulation = None if self.emulated is None else Emulation(self.emulated, self.slow)
        settings = Settings(self.name, self.place, self.folder, emulation, self.memory_bytes, self.engine)
        return replace(
            settings,
            owner=self.owner,
            meter=meter,
            personal=self.personal,
            disk_bytes=self.disk_bytes,
            allowed=self.allowed,
            elsewhere_bytes=self.elsewhere_bytes,
            choose=self.choose,
        )


class PreviewRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.preview`; `rates` as in LinkSpeed."""

    current: OpenRound
    rates: tuple[float | None, float | None]


class PrepareRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.prepare`."""

    current: OpenRound


class WorkRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.work`.

    `waiting`: rounds of this run whose contributions have no receipt; `paused_s` as in WorkGate.
    """

    current: OpenRound
    rates: tuple[float | None, float | None]
    waiting: tuple[int, ...]
    paused_s: float
    deaths: tuple[WorkerDeath, ...] = ()


class EvaluateModelRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.evaluate_personal_model`."""

    current: OpenRound


class KeepModelRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.keep_final_model`."""

    over: OpenRound


class ReceiptRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.receipt_received`."""

    message: Contribution
    counts: bool


class SaveStateRequest(msgspec.Struct, frozen=True, tag=True):
    """A call of `WorkBackend.save_state`."""


class ProgressReply(msgspec.Struct, frozen=True, tag=True):
    """Answer to a ProgressReport. `end_reason`: why the work must end, if its round closed during a pause."""

    paused_s: float
    end_reason: str = ""


class ProgressReport(msgspec.Struct, frozen=True, tag=True):
    """Progress from 0 to 1. The worker waits for the answer whether to go on."""

    done: float


class PlanReport(msgspec.Struct, frozen=True, tag=True):
    """See BackendListener.decided."""

    plan: Plan
    room_bytes: float


class ResultReport(msgspec.Struct, frozen=True, tag=True):
    """See BackendListener.made."""

    result: WorkResult


class KnownTask(msgspec.Struct, frozen=True):
    """The task that the worker knows, with its hello; the device fills in the boot."""

    bundles: Bundles
    hello: Hello


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A request is done.

    `preview` answers a PreviewRequest, `finished` says whether the work of a WorkRequest is finished.
    `error`: the name of an error's class, and its text. `cpu_s`: processor seconds of the worker so far.
    """

    task: KnownTask | None = None
    preview: RoundPreview | None = None
    finished: bool = True
    error: tuple[str, str] | None = None
    cpu_s: float = 0.0


Request = (
    WorkTerms
    | PreviewRequest
    | PrepareRequest
    | WorkRequest
    | EvaluateModelRequest
    | KeepModelRequest
    | ReceiptRequest
    | SaveStateRequest
    | ProgressReply
)
WorkerMessage = ProgressReport | PlanReport | ResultReport | Ended
