"""The main program of a worker process: answers a device's requests, and ends when the device is gone."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from pathlib import Path

from device_runtime.broker.errors import BlobError, DiskError
from device_runtime.broker.wire.messages import Offer, Plan
from device_runtime.console import log_to_stderr
from device_runtime.device.energy import Meter, MeterError, find_meter, resting
from device_runtime.device.errors import DeviceError, RoundOver
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.models.errors import ModelError
from device_runtime.system_errors import is_of_disk, shortage
from device_runtime.user_account import provide_temporary_folder

from .base import BackendListener, RoundPreview, WorkResult
from .in_process import InProcess
from .rpc import (
    Ended,
    EvaluateModelRequest,
    KeepModelRequest,
    KnownTask,
    PlanReport,
    PrepareRequest,
    PreviewRequest,
    ProgressReply,
    ProgressReport,
    ReceiptRequest,
    Request,
    ResultReport,
    Rpc,
    SaveStateRequest,
    WorkerGone,
    WorkRequest,
    WorkTerms,
)

log = logging.getLogger(__name__)

PROGRESS_S = 0.1
"""Seconds of work between two progress reports, each of which asks whether to go on."""

EMPTY = "empty"
"""Folder, in the device's own, in which the worker runs."""

Inbox = queue.SimpleQueue[Request]


def main(number: int) -> None:
    """Work for the process at the other end of this socket (a file descriptor), until that closes it."""
    log_to_stderr()
    rpc: Rpc[Request] = Rpc(socket.socket(fileno=number), Request)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(rpc, inbox), daemon=True).start()
    terms = inbox.get()
    if not isinstance(terms, WorkTerms):
        raise TypeError(f"the first message is {type(terms).__name__}, expected WorkTerms")
    try:
        meter = find_meter(terms.meter).meter
    except MeterError as error:  # it was there when the device joined
        log.warning("energy is modelled: %s", error)
        meter = None
    provide_temporary_folder(terms.folder)
    _go_where_nothing_is(terms.folder)
    worker = DeviceWorker(terms, meter, rpc, inbox)
    while True:
        rpc.send(worker.answer(inbox.get()))


def _go_where_nothing_is(folder: Path) -> None:
    """Change to an empty folder to run graphs in.

    No graph may name a file (`graph_check`); if one did all the same, there would be none beside it.
    """
    empty = folder / EMPTY
    empty.mkdir(mode=0o500, parents=True, exist_ok=True)
    os.chdir(empty)


def _listen(rpc: Rpc[Request], inbox: Inbox) -> None:
    """Receive requests, on a thread, so that the worker ends at once if the device does: nothing is lost.

    The worker also ends if it cannot receive any more, as for lack of memory.
    """
    try:
        while (request := rpc.receive()) is not None:
            inbox.put(request)
    except WorkerGone:
        os._exit(0)
    except Exception:
        try:
            log.exception("requests cannot be received")
        finally:
            os._exit(1)


class RemoteWorkGate(WorkGate):
    """A work gate kept by the device; `paused_before_s` is what the device sent last."""

    paused_before_s = 0.0

    def paused_s(self) -> float:
        return self.paused_before_s


class DeviceWorker:
    """Answers requests with an InProcess backend."""

    def __init__(self, terms: WorkTerms, meter: Meter | None, rpc: Rpc[Request], inbox: Inbox) -> None:
        self._rpc, self._inbox, self._meter = rpc, inbox, meter
        self._gate, self._link = RemoteWorkGate(time.monotonic), LinkSpeed()
        self._backend = InProcess(terms.settings(meter), self._gate, self._link)
        self._done, self._asked_s, self._unanswered = 0.0, 0.0, False

    def answer(self, request: Request) -> Ended:
        """Do what is requested. Errors of ours are reported; any other ends the process."""
        preview, finished = None, True
        error: tuple[str, str] | None = None
        try:
            if isinstance(request, WorkRequest):
                finished = self._work(request)
            else:
                preview = self._do(request)
        except (DeviceError, ModelError, BlobError) as raised:
            error = (type(raised).__name__, str(raised))
        except OSError as raised:
            if not is_of_disk(raised):
                raise
            error = (DiskError.__name__, shortage(raised) or str(raised))
        if self._unanswered:
            self._take_reply(self._inbox.get())
        bundles = self._backend.bundles
        task = KnownTask(bundles, self._backend.hello(0)) if bundles else None
        return Ended(task, preview, finished, error, time.process_time())

    def _do(self, request: Request) -> RoundPreview | None:
        if isinstance(request, PreviewRequest):
            self._link.rates = request.rates
            return self._backend.preview(request.current)
        if isinstance(request, PrepareRequest):
            self._backend.prepare(request.current)
        elif isinstance(request, EvaluateModelRequest):
            self._backend.evaluate_personal_model(request.current, self.pause_point)
        elif isinstance(request, KeepModelRequest):
            self._backend.keep_final_model(request.over, self.pause_point)
        elif isinstance(request, ReceiptRequest):
            self._backend.receipt_received(request.message, request.counts)
        elif isinstance(request, SaveStateRequest):
            self._backend.save_state()
        return None

    def _work(self, request: WorkRequest) -> bool:
        self._link.rates, self._gate.paused_before_s, self._done = request.rates, request.paused_s, 0.0
        self._backend.deaths = request.deaths
        listener = BackendListener(
            self._progress,
            self.pause_point,
            self._gate.paused_s,
            self._decided,
            self._send_result,
            lambda _offer: False,
            lambda _run: request.waiting,
        )
        return self._backend.work(request.current, listener)

    def _progress(self, done: float) -> None:
        self._done = done
        self.pause_point()

    def pause_point(self) -> None:
        """Report progress and wait for the reply; raises as `Runner.pause_point` does.

        The work is paused until the reply comes; only lack of memory ends that wait.
        """
        if not self._unanswered and time.monotonic() - self._asked_s < PROGRESS_S:
            return
        if not self._unanswered:
            self._rpc.send(ProgressReport(self._done))
        self._unanswered = True
        reply = self._take_reply(self._awaited_reply())
        if reply.end_reason:
            raise RoundOver(reply.end_reason)

    def _awaited_reply(self) -> Request:
        reply = self._next()
        if reply is not None:
            return reply
        with resting(self._meter):
            while (reply := self._next()) is None:
                self._backend.check_paused_work()
        return reply

    def _next(self) -> Request | None:
        try:
            return self._inbox.get(timeout=PROGRESS_S)
        except queue.Empty:
            return None

    def _take_reply(self, reply: Request) -> ProgressReply:
        """Take the reply to the last progress report. Raises TypeError if it is another request."""
        if not isinstance(reply, ProgressReply):
            raise TypeError(f"{type(reply).__name__} came in reply to a progress report")
        self._unanswered, self._asked_s = False, time.monotonic()
        self._gate.paused_before_s = reply.paused_s
        return reply

    def _decided(self, _offer: Offer, plan: Plan, room_bytes: float) -> None:
        self._rpc.send(PlanReport(plan, room_bytes))

    def _send_result(self, result: WorkResult) -> None:
        self._rpc.send(ResultReport(result))
