"""The main program of a worker process: answers a device's requests, and ends when the device is gone."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from pathlib import Path

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Offer, Plan
from device_runtime.client import energy as meters
from device_runtime.client.energy import Meter, resting
from device_runtime.client.errors import DeviceError, RoundOver
from device_runtime.client.policy.work_gate import WorkGate
from device_runtime.client.selection.link_speed import LinkSpeed
from device_runtime.console import log_to_stderr
from device_runtime.models.errors import ModelError

from .base import BackendListener, RoundPreview, WorkResult
from .in_process import InProcess
from .rpc import (
    After,
    Beat,
    Decided,
    Ended,
    GoOn,
    KeepModel,
    KnownTask,
    LookAt,
    Prepare,
    PutDown,
    Reported,
    Request,
    Rpc,
    Settle,
    WorkerGone,
    WorkOrder,
    WorkTerms,
)

log = logging.getLogger(__name__)

BEAT_S = 0.1
"""Seconds of work between two questions whether to go on."""

EMPTY = "empty"
"""Folder, in the device's own, in which the worker runs."""

Inbox = queue.SimpleQueue[Request]


def main(number: int) -> None:
    """Work for the process at the other end of this socket (a file descriptor), until that closes it."""
    log_to_stderr()
    crossing: Rpc[Request] = Rpc(socket.socket(fileno=number), Request)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(crossing, inbox), daemon=True).start()
    terms = inbox.get()
    if not isinstance(terms, WorkTerms):
        raise TypeError(f"the first message is {type(terms).__name__}, expected WorkTerms")
    try:
        meter = meters.find(terms.meter).meter
    except DeviceError as error:
        inbox.get()
        crossing.say(Ended(error=(type(error).__name__, str(error))))
        return
    _go_where_nothing_is(terms.folder)
    worker = DeviceWorker(terms, meter, crossing, inbox)
    while True:
        crossing.say(worker.answer(inbox.get()))


def _go_where_nothing_is(folder: Path) -> None:
    """Change to an empty folder to run graphs in.

    No graph may name a file (`graph_check`); if one did all the same, there would be none beside it.
    """
    empty = folder / EMPTY
    empty.mkdir(mode=0o500, parents=True, exist_ok=True)
    os.chdir(empty)


def _listen(crossing: Rpc[Request], inbox: Inbox) -> None:
    """Receive requests, on a thread, so that the worker ends at once if the device does: nothing is lost.

    The worker also ends if it cannot receive any more, as for lack of memory.
    """
    try:
        while (asked := crossing.hear()) is not None:
            inbox.put(asked)
    except WorkerGone:
        os._exit(0)
    except Exception:
        try:
            log.exception("requests cannot be received")
        finally:
            os._exit(1)


class RemoteWorkGate(WorkGate):
    """A work gate kept by the device; `lost_s` is what the device sent last."""

    lost_s = 0.0

    def lost(self) -> float:
        return self.lost_s


class DeviceWorker:
    """Answers requests with an InProcess backend."""

    def __init__(self, terms: WorkTerms, meter: Meter | None, crossing: Rpc[Request], inbox: Inbox) -> None:
        self._crossing, self._inbox, self._meter = crossing, inbox, meter
        self._hours, self._link = RemoteWorkGate(time.monotonic), LinkSpeed()
        self._here = InProcess(terms.settings(meter), self._hours, self._link)
        self._done, self._asked_s, self._unanswered = 0.0, 0.0, False

    def answer(self, asked: Request) -> Ended:
        """Do what is asked. Errors of ours are reported; any other ends the process."""
        look, over = None, True
        error: tuple[str, str] | None = None
        try:
            if isinstance(asked, WorkOrder):
                over = self._work(asked)
            else:
                look = self._do(asked)
        except (DeviceError, ModelError, BlobError) as raised:
            error = (type(raised).__name__, str(raised))
        if self._unanswered:
            self._heard(self._inbox.get())
        bundles = self._here.bundles
        known = KnownTask(bundles, self._here.hello(0)) if bundles else None
        return Ended(known, look, over, error, time.process_time())

    def _do(self, asked: Request) -> RoundPreview | None:
        if isinstance(asked, LookAt):
            self._link.seen = asked.seen
            return self._here.look(asked.current)
        if isinstance(asked, Prepare):
            self._here.prepare(asked.current)
        elif isinstance(asked, After):
            self._here.after(asked.current, self.between)
        elif isinstance(asked, KeepModel):
            self._here.keep(asked.over, self.between)
        elif isinstance(asked, Settle):
            self._here.settle(asked.message, asked.counts)
        elif isinstance(asked, PutDown):
            self._here.put_down()
        return None

    def _work(self, asked: WorkOrder) -> bool:
        self._link.seen, self._hours.lost_s, self._done = asked.seen, asked.lost_s, 0.0
        self._here.deaths = asked.deaths
        listener = BackendListener(
            self._progress,
            self.between,
            self._hours.lost,
            self._decided,
            self._made,
            lambda _offer: False,
            lambda _run: asked.waiting,
        )
        return self._here.work(asked.current, listener)

    def _progress(self, done: float) -> None:
        self._done = done
        self.between()

    def between(self) -> None:
        """Ask whether to go on, and wait for the answer; raises as `Interruption.between` does.

        The work is paused until the answer comes; only lack of memory ends that wait.
        """
        if not self._unanswered and time.monotonic() - self._asked_s < BEAT_S:
            return
        if not self._unanswered:
            self._crossing.say(Beat(self._done))
        self._unanswered = True
        answer = self._heard(self._answered())
        if answer.over:
            raise RoundOver(answer.over)

    def _answered(self) -> Request:
        answer = self._next()
        if answer is not None:
            return answer
        with resting(self._meter):
            while (answer := self._next()) is None:
                self._here.heed()
        return answer

    def _next(self) -> Request | None:
        try:
            return self._inbox.get(timeout=BEAT_S)
        except queue.Empty:
            return None

    def _heard(self, answer: Request) -> GoOn:
        """Take the answer to the last beat. Raises TypeError if it is not one."""
        if not isinstance(answer, GoOn):
            raise TypeError(f"{type(answer).__name__} came in answer to a beat")
        self._unanswered, self._asked_s = False, time.monotonic()
        self._hours.lost_s = answer.lost_s
        return answer

    def _decided(self, _offer: Offer, plan: Plan, room_bytes: float) -> None:
        self._crossing.say(Decided(plan, room_bytes))

    def _made(self, made: WorkResult) -> None:
        self._crossing.say(Reported(made))
