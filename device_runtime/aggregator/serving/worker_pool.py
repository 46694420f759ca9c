"""Starts and restarts the worker processes that check contributions, and defines their messages."""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from device_runtime.aggregator.configuration.config import BrokerSection, LogSection
from device_runtime.aggregator.errors import WorkerError
from device_runtime.aggregator.intake.check import CheckedMessage
from device_runtime.broker.wire.link_events import Event, ReconnectDelay
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.service_process import Exit, python_command

log = logging.getLogger(__name__)

START_S = 120.0
"""Seconds that a worker may take to start for the first time."""
STOP_S = 5.0
"""Seconds that a worker gets to end before it is killed."""
RESTART_S = (0.5, 30.0)
"""Seconds before a worker that has ended is started again: at first, and at most."""
_PROGRAM = "from device_runtime.aggregator.serving.worker_main import main; main()"


class Workers:
    """A pool of `count` workers with one order, which put checked contributions into `inbox`.

    A context manager: all workers are ready when it is entered, and have ended when it is left. Raises
    WorkerError.
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
    """One worker process, and the thread that reads from it and starts it again."""

    def __init__(self, number: int, order: WorkerOrder, inbox: queue.SimpleQueue[Event]) -> None:
        self._number, self._order, self._inbox = number, order, inbox
        self._ready: Future[None] = Future()
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"worker {number}", daemon=True)

    def start(self) -> None:
        """Start the process; returns at once."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is ready. Raises WorkerError."""
        if not wait((self._ready,), START_S).done:
            raise self._error(WorkerFailed(f"it is not ready after {START_S:g} s", Exit.MISTAKE))
        self._ready.result()

    def leave(self) -> None:
        """Tell the process to end; returns at once."""
        with self._lock:
            self._stop.set()
            if self._process and self._process.stdin:
                with suppress(OSError):
                    self._process.stdin.close()

    def end(self) -> None:
        """Wait until the process has ended; kill it after STOP_S."""
        if self._process:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Start the process again whenever it ends, until `leave`."""
        delay = ReconnectDelay(RESTART_S)
        while not self._stop.is_set():
            since = time.monotonic()
            failed = self._life()
            if failed is None or self._stop.is_set():
                break
            delay.note_end(time.monotonic() - since)
            log.warning("worker %d has ended (%s); starting another", self._number, failed.why)
            if not self._ready.done():
                self._ready.set_exception(self._error(failed))
            self._stop.wait(delay.wait_s())
            delay.failed()

    def _error(self, failed: WorkerFailed) -> WorkerError:
        return WorkerError(f"worker {self._number} cannot work: {failed.why}", failed.code)

    def _life(self) -> WorkerFailed | None:
        """Run one process from its start to its end. Returns why it ended; None if the pool is stopping."""
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
        """A new process that has got its order; None if the pool is stopping."""
        with self._lock:
            if self._stop.is_set():
                return None
            self._process = subprocess.Popen(
                python_command(_PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            if self._process.stdin:
                with suppress(OSError):  # it has ended already, which `_hear` notices
                    write_message(self._process.stdin, self._order)
                    self._process.stdin.flush()
            return self._process

    def _hear(self, process: subprocess.Popen[bytes]) -> WorkerFailed | None:
        """Read its messages until it ends. Returns the reason if it sent one."""
        if not process.stdout:
            return None
        try:
            with process.stdout as out:
                while word := read_message(out, MessageOfWorker):  # type: ignore[arg-type]  # a union is no type
                    match word:
                        case CheckedContribution():
                            self._inbox.put(CheckedMessage(word.topic, word.payload, False, word.refusal))
                        case WorkerReady():
                            if not self._ready.done():
                                self._ready.set_result(None)
                        case WorkerFailed():
                            return word
        except msgspec.MsgspecError as error:
            process.kill()
            return WorkerFailed(f"its message is invalid: {error}", Exit.MISTAKE)
        return None


# Messages on a worker's stdin (WorkerOrder) and stdout (the others): structs, each after its length.

T = TypeVar("T")

_LENGTH = 4
"""Bytes of the length before each message."""


class WorkerOrder(msgspec.Struct, frozen=True):
    """Tells a worker to check contributions on `topic` for the runs in `folders`.

    `section` says where the credentials for the broker are read anew.
    """

    broker: BrokerUrl
    topic: str
    folders: tuple[Path, ...]
    database: str
    log: LogSection
    section: BrokerSection = BrokerSection()


class WorkerReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The broker has accepted the worker's subscription."""


class WorkerFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker cannot work, and ends; `code` as in WorkerError."""

    why: str
    code: int


class CheckedContribution(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A contribution that a worker has checked; `refusal` as in `CheckedMessage`."""

    topic: str
    payload: bytes
    refusal: str | None


MessageOfWorker = WorkerReady | WorkerFailed | CheckedContribution


def write_message(stream: IO[bytes], struct: object) -> None:
    """Write a message; it is sent at the stream's next flush. Raises OSError."""
    content = msgspec.msgpack.encode(struct, enc_hook=str)  # paths
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)


def read_message(stream: IO[bytes], kind: type[T]) -> T | None:
    """The next message; None at the end of the stream, even in the middle of a message."""
    length = stream.read(_LENGTH)
    if len(length) < _LENGTH:
        return None
    size = int.from_bytes(length, "big")
    content = stream.read(size)
    if len(content) < size:
        return None
    return msgspec.msgpack.decode(content, type=kind, dec_hook=lambda path, value: path(value))
