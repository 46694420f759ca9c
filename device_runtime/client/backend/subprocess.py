"""Backend that works on rounds in a worker process, which runs while there is work, and a while after."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

import msgspec

from device_runtime.broker.errors import BlobError, NoRoom
from device_runtime.broker.wire.messages import Contribution, Hello, Offer
from device_runtime.client import energy as meters
from device_runtime.client import errors
from device_runtime.client.connection.offers import OpenRound
from device_runtime.client.delivery.reports import bare_hello, sat_out_plan
from device_runtime.client.errors import DeviceError, RoundOver, WorkDied, WorkerDeath
from device_runtime.client.policy.work_gate import WorkGate
from device_runtime.client.selection.link_speed import LinkSpeed
from device_runtime.client.settings import Settings
from device_runtime.models import errors as model_errors
from device_runtime.models.errors import ModelError

from .base import LEFT, BackendListener, Bundles, RoundPreview, WorkResult
from .child_process import Child
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
    SaveStateRequest,
    WorkerGone,
    WorkerMessage,
    WorkRequest,
    WorkTerms,
)

log = logging.getLogger(__name__)

STAYS_S, STAYS_TIMES = 10.0, 5.0
"""Seconds that the worker process stays without work, or STAYS_TIMES its start if that is longer.

The start is counted in processor time: a process that starts slowly stays longer.
"""
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0
"""Seconds until a process that died is started again, doubled each time until some work is done."""
LOOK_S = 0.5
"""Seconds between checks whether to stop, while the process is silent."""
CLOSED_SILENT_S, PAUSED_SILENT_S, SILENT_S = 20.0, 30.0, 3600.0
"""Seconds of silence after which the worker process is ended.

CLOSED_SILENT_S when its round has closed, PAUSED_SILENT_S when the rules say no, otherwise SILENT_S, as it
may be reading samples. It sends a message after each run of a graph, so it is silent in a graph that never
ends.
"""

ERRORS: dict[str, Callable[[str], Exception]] = {
    one.__name__: one
    for one in (*vars(errors).values(), *vars(model_errors).values(), meters.MeterError, BlobError, NoRoom)
    if isinstance(one, type) and issubclass(one, (DeviceError, ModelError, BlobError))
}
"""Errors that the process reports, by class name."""


class Subprocess:
    """See `WorkBackend`. Raises WorkDied while it is too early to start a process that died again."""

    def __init__(
        self,
        settings: Settings,
        gate: WorkGate,
        link: LinkSpeed,
        meter: str = meters.MODELLED,
        stays_s: float = STAYS_S,
    ) -> None:
        """`meter` by its name; that of `settings` is not used. `stays_s` may be infinite."""
        self._settings, self._gate, self._link, self._meter = settings, gate, link, meter
        self._stays_s, self._used_s = stays_s, 0.0
        self._cpu_s: float | None = None
        self._child: Child | None = None
        self._known: KnownTask | None = None
        self._busy = self._is_paused = False
        self._pending_receipts: list[ReceiptRequest] = []
        self._tried_form, self._reported = "", False
        self._deaths: tuple[OpenRound | None, tuple[WorkerDeath, ...]] = (None, ())
        self._refused, self._killed = "", False
        self._not_before_s, self._wait_s = -inf, AGAIN_S

    @property
    def bundles(self) -> Bundles:
        return self._known.bundles if self._known else ()

    def hello(self, boot: int) -> Hello:
        """The hello as it was last."""
        return msgspec.structs.replace(self._known.hello, boot=boot) if self._known else bare_hello(boot)

    def warm_up(self) -> None:
        try:
            self._running()
        except WorkDied as error:
            log.warning("%s", error)

    def preview(self, current: OpenRound) -> RoundPreview:
        preview = self._ask(PreviewRequest(current, self._link.seen)).preview
        if preview is None:
            raise TypeError("a PreviewRequest was answered without a preview")
        return preview

    def prepare(self, current: OpenRound) -> None:
        self._ask(PrepareRequest(current))

    def work(self, current: OpenRound, listener: BackendListener) -> bool:
        """If the process dies, the form it worked on is given up and the next cheaper one is tried.

        That holds until the round has a new deadline; nothing more is tried once the round has closed.
        """
        offer = current.offer
        while True:
            before, deaths = self._deaths
            if before is None or not current.follows(before):
                before, deaths = current, ()
            if deaths and self._gate.clock() >= current.closes:
                return _sat_out(offer, deaths, listener)
            waiting = tuple(listener.waiting(offer.run))
            request = WorkRequest(current, self._link.seen, waiting, listener.lost(), deaths)
            self._tried_form, self._reported = "", False
            try:
                return self._ask(
                    request, listener.progress, lambda message: self._pass_on(message, offer, listener)
                ).finished
            except WorkDied as error:
                if self._reported:
                    return True
                if not self._tried_form:
                    raise
                log.warning("%s given up: %s", self._tried_form, error)
                self._deaths = (before, (*deaths, WorkerDeath(self._tried_form, str(error), self._killed)))
                self._not_before_s = -inf  # start at once: each time there is one form less to try
                listener.died()
                _end_reason(listener.progress, 0.0)  # the next form, too, waits while the rules say no

    def evaluate_personal_model(self, current: OpenRound, pause_point: Callable[[], None]) -> None:
        if self._settings.personal.keep:
            self._ask(EvaluateModelRequest(current), lambda _: pause_point())

    def keep_final_model(self, over: OpenRound, pause_point: Callable[[], None]) -> None:
        self._ask(KeepModelRequest(over), lambda _: pause_point())

    def receipt_received(self, message: Contribution, counts: bool) -> None:
        """While work is paused, this is delayed until just before the next request."""
        folder, request = self._settings.folder / LEFT, ReceiptRequest(message, counts)
        if not folder.exists() or not any(folder.iterdir()):
            return
        if self._busy:
            self._pending_receipts.append(request)
        else:
            self._ask(request)

    def check_paused_work(self) -> None:
        """Raises WorkDied if work goes on though the rules say no; the worker checks its memory itself."""
        if not self._busy or self._is_paused or self._child is None:
            return
        if self._child.rpc.silent_s >= PAUSED_SILENT_S:
            raise self._given_up(f"it did not pause within {PAUSED_SILENT_S:.0f} s")

    def end_if_idle(self) -> None:
        stays_s = max(self._stays_s, STAYS_TIMES * (self._cpu_s or 0.0))
        if self._child is not None and not self._busy and self._gate.clock() - self._used_s >= stays_s:
            self.save_state()
            self.close()

    def save_state(self) -> None:
        """A process that has not answered any request has nothing in memory, and is not waited for."""
        try:
            if self._pending_receipts or (self._child and self._cpu_s is not None and not self._child.ended):
                self._ask(SaveStateRequest())
        except WorkDied as error:
            log.warning("%s, when it was to end", error)

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None

    def _ask(
        self,
        request: Request,
        progress: Callable[[float], None] = lambda _: None,
        handle: Callable[[WorkerMessage], None] = lambda _: None,
    ) -> Ended:
        """Send a request and wait for its end.

        `progress` is called again and again meanwhile; what it raises ends the process. `handle` gets the
        other messages. Callbacks must not make requests of their own.
        """
        while self._pending_receipts:
            self._send_receipt(self._pending_receipts.pop())
        child = self._running()
        done, end_reason = 0.0, ""
        self._busy, self._is_paused = True, False
        try:
            child.rpc.send(request)
            while not isinstance(message := child.rpc.receive(LOOK_S), Ended):
                if message is None and (why := self._endless(request, child)):
                    raise self._given_up(why)
                if message is None or isinstance(message, ProgressReport):
                    done = message.done if message else done
                    self._is_paused = message is not None  # it waits for the reply to its report
                    end_reason = end_reason or _end_reason(progress, done)
                if isinstance(message, ProgressReport):
                    child.rpc.send(ProgressReply(self._gate.lost(), end_reason))
                elif message is not None:
                    handle(message)
        except WorkerGone:
            self.close()
            self._killed = child.killed
            raise self._put_off(child.end_description) from None
        except BaseException:
            self.close()
            raise
        finally:
            self._busy = False
        if isinstance(request, (WorkRequest, EvaluateModelRequest, KeepModelRequest)):
            self._wait_s = AGAIN_S
        return self._ended(message)

    def _endless(self, request: Request, child: Child) -> str:
        """Why the process is not waited for any longer; empty if it is."""
        silent_s = child.rpc.silent_s
        if (
            isinstance(request, WorkRequest)
            and self._gate.clock() >= request.current.closes
            and silent_s >= CLOSED_SILENT_S
        ):
            return f"it said nothing for {CLOSED_SILENT_S:.0f} s when its round had closed"
        return f"it said nothing for {SILENT_S:.0f} s" if silent_s >= SILENT_S else ""

    def _given_up(self, why: str) -> WorkDied:
        """The error to raise, which ends the process."""
        self._killed = False
        return self._put_off(f"the process that worked on it was ended: {why}")

    def _send_receipt(self, request: ReceiptRequest) -> None:
        """Send a receipt; a BlobError is only logged, as the receipt does not come again. Raises WorkDied."""
        try:
            self._ask(request)
        except BlobError as error:
            log.warning("round %d: %s", request.message.round, error)
        except WorkDied:
            self._pending_receipts.append(request)
            raise

    def _pass_on(self, message: WorkerMessage, offer: Offer, listener: BackendListener) -> None:
        if isinstance(message, PlanReport):
            self._tried_form = message.plan.kind
            listener.decided(offer, message.plan, message.room_bytes)
        elif isinstance(message, ResultReport):
            self._reported = True
            listener.made(message.made)

    def _ended(self, ended: Ended) -> Ended:
        """Take the end of a request. Raises the error that it reports."""
        self._used_s = self._gate.clock()
        if self._cpu_s is None:
            self._cpu_s = ended.cpu_s
        if ended.error is not None:
            name, text = ended.error
            raise ERRORS.get(name, DeviceError)(text)
        self._known = ended.known or self._known
        return ended

    def _running(self) -> Child:
        """The process, started if there is none. Raises WorkDied."""
        if self._child is not None and self._child.ended:
            log.warning("%s, with nothing to do", self._child.end_description)
            self.close()
        if self._child is None:
            if self._gate.clock() < self._not_before_s:
                raise WorkDied(self._refused)
            try:
                self._child = Child(WorkTerms.of(self._settings, self._meter, _held_bytes(self._settings)))
            except OSError as error:
                why = f"no worker process can be started ({error}); --in-process works without one"
                raise self._put_off(why) from None
            self._used_s, self._cpu_s = self._gate.clock(), None
        return self._child

    def _put_off(self, why: str) -> WorkDied:
        """The error to raise; sets a wait before the next start."""
        self._refused, self._not_before_s = why, self._gate.clock() + self._wait_s
        self._wait_s = min(2 * self._wait_s, AGAIN_MOST_S)
        return WorkDied(why)


def _sat_out(offer: Offer, deaths: tuple[WorkerDeath, ...], listener: BackendListener) -> bool:
    """Report why the round has no contribution; its work is over."""
    reasons = tuple(f"{death.label} given up: {death.why}" for death in deaths)
    plan = sat_out_plan(offer.task, offer.round, reasons)
    listener.decided(offer, plan, 0.0)
    listener.made(WorkResult(offer.run, offer.round, reasons=reasons))
    return True


def _held_bytes(settings: Settings) -> int:
    """Bytes held by this process; 0 if no memory limit is set."""
    if settings.memory_bytes is None:
        return 0
    import psutil  # 2 MB

    return int(psutil.Process().memory_info().rss)


def _end_reason(progress: Callable[[float], None], done: float) -> str:
    """Why the work must end, if its round is over; else empty."""
    try:
        progress(done)
    except RoundOver as error:
        return str(error)
    return ""
