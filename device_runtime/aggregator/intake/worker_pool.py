"""The workers beside an aggregator: started, heard, and started again when they end."""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from device_runtime.aggregator.errors import WorkerError
from device_runtime.aggregator.serving.config import LogSection
from device_runtime.aggregator.serving.exit_codes import Exit
from device_runtime.broker.wire.link_events import Event
from device_runtime.broker.wire.link_timing import ReconnectDelay
from device_runtime.broker.wire.url import BrokerUrl

from .check_process import CheckedMessage

log = logging.getLogger(__name__)

START_S = 120.0
"""Seconds that the first start may take."""
STOP_S = 5.0
"""Seconds that a worker gets to leave."""
AGAIN_S = (0.5, 30.0)
"""Seconds before an ended worker is started again: at first, and at most."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from device_runtime.aggregator.intake.worker_main import main; main()"
)


class Workers:
    """So many processes with one order between them; what they looked at goes to `inbox`. A context manager:
    all are at work when it is entered, and gone when it is left. Raises WorkerError.
    """

    def __init__(self, count: int, order: WorkerOrder, inbox: queue.SimpleQueue[Event]) -> None:
        self._workers = [_Worker(number, order, inbox) for number in range(1, count + 1)]

    def __enter__(self) -> Workers:
        try:
            for worker in self._workers:
                worker.start()
            for worker in self._workers:
                worker.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.leave()
        for worker in self._workers:
            worker.end()


class _Worker:
    def __init__(self, number: int, order: WorkerOrder, inbox: queue.SimpleQueue[Event]) -> None:
        self._number, self._order, self._inbox = number, order, inbox
        self._begun: Future[None] = Future()
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"worker {number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Until it is at work. Raises WorkerError."""
        if not wait((self._begun,), START_S).done:
            raise self._error(WorkerFailed(f"it is not ready after {START_S:g} s", Exit.MISTAKE))
        self._begun.result()

    def leave(self) -> None:
        """Say that it is over; returns at once."""
        with self._lock:
            self._stop.set()
            if self._process and self._process.stdin:
                with suppress(OSError):
                    self._process.stdin.close()

    def end(self) -> None:
        """Wait until it is gone, or end it."""
        if self._process:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        patience = ReconnectDelay(AGAIN_S)
        while not self._stop.is_set():
            since = time.monotonic()
            failed = self._life()
            if failed is None or self._stop.is_set():
                break
            patience.lost(time.monotonic() - since)
            log.warning("worker %d has ended (%s); starting another", self._number, failed.why)
            if not self._begun.done():
                self._begun.set_exception(self._error(failed))
            self._stop.wait(patience.wait_s())
            patience.failed()

    def _error(self, failed: WorkerFailed) -> WorkerError:
        return WorkerError(f"worker {self._number} cannot work: {failed.why}", failed.code)

    def _life(self) -> WorkerFailed | None:
        """From its start to its end; why that came. None where none was started, as all is over."""
        try:
            process = self._launched()
        except OSError as error:
            return WorkerFailed(f"it does not start: {error}", Exit.MISTAKE)
        if process is None:
            return None
        failed = self._hear(process)
        code = process.wait()
        if process.stdin:
            with suppress(OSError):
                process.stdin.close()
        return failed or WorkerFailed(f"status {code}", Exit.MISTAKE)

    def _launched(self) -> subprocess.Popen[bytes] | None:
        """A new process with its order; None when all is over."""
        with self._lock:
            if self._stop.is_set():
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            if self._process.stdin:
                with suppress(OSError):  # it has ended already, which is heard of
                    write(self._process.stdin, self._order)
                    self._process.stdin.flush()
            return self._process

    def _hear(self, process: subprocess.Popen[bytes]) -> WorkerFailed | None:
        """Until it ends; why, if it says so."""
        if not process.stdout:
            return None
        try:
            with process.stdout as out:
                while word := read(out, Word):  # type: ignore[arg-type]  # a union is no type
                    match word:
                        case Looked():
                            self._inbox.put(CheckedMessage(word.topic, word.payload, False, word.refusal))
                        case WorkerReady():
                            if not self._begun.done():
                                self._begun.set_result(None)
                        case WorkerFailed():
                            return word
        except msgspec.MsgspecError as error:
            process.kill()
            return WorkerFailed(f"what it says is no word: {error}", Exit.MISTAKE)
        return None


# FROM worker_protocol: What a worker is told on its stdin, and says on its stdout: structs with their
# length before them.

T = TypeVar("T")

_LENGTH = 4
"""Bytes."""


class WorkerOrder(msgspec.Struct, frozen=True):
    """What a worker is for: contributions that come by `topic`, for the runs in `folders`."""

    broker: BrokerUrl
    topic: str
    folders: tuple[Path, ...]
    database: str
    log: LogSection


class WorkerReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The broker has taken its subscription."""


class WorkerFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It cannot work, and ends; `code` as in WorkerError."""

    why: str
    code: int


class Looked(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A contribution has come; `refusal` as in `check_process.Checked`."""

    topic: str
    payload: bytes
    refusal: str | None


Word = WorkerReady | WorkerFailed | Looked


def write(stream: IO[bytes], struct: object) -> None:
    """It is on its way after the stream's next flush. Lets OSError through."""
    content = msgspec.msgpack.encode(struct, enc_hook=str)  # paths
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)


def read(stream: IO[bytes], kind: type[T]) -> T | None:
    """The next; None at the end, also where that comes in the middle of one."""
    length = stream.read(_LENGTH)
    if len(length) < _LENGTH:
        return None
    size = int.from_bytes(length, "big")
    content = stream.read(size)
    if len(content) < size:
        return None
    return msgspec.msgpack.decode(content, type=kind, dec_hook=lambda path, value: path(value))
