"""Backend that works on rounds in a worker process, which runs while there is work, and a while after."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from device_runtime.broker.errors import BlobError, DiskError, NoRoom
from device_runtime.broker.wire.messages import Contribution, Hello, Offer
from device_runtime.device import energy as meters
from device_runtime.device import errors
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.errors import DeviceError, RoundOver, WorkDied, WorkerDeath
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.settings import Settings
from device_runtime.machine_readings import resident_bytes
from device_runtime.models import errors as model_errors
from device_runtime.models.errors import ModelError

from .base import LEFT, BackendListener, Bundles, RoundPreview, WorkResult, bare_hello, sat_out_plan
from .child_process import STAYS_S, Child, OnDemandWorker
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

LOOK_S = 0.5
"""Seconds between checks whether to stop, while the process is silent."""
ENDED = "the process that worked on it was ended"
CLOSED_SILENT_S, PAUSED_SILENT_S, SILENT_S = 20.0, 30.0, 3600.0
"""Seconds of silence after which the worker process is ended.

CLOSED_SILENT_S when its round has closed, PAUSED_SILENT_S when the rules say no, otherwise SILENT_S, as it
may be reading samples. It sends a message after each run of a graph, so it is silent in a graph that never
ends.
"""

ERRORS: dict[str, Callable[[str], Exception]] = {
    error.__name__: error
    for error in (
        *vars(errors).values(),
        *vars(model_errors).values(),
        meters.MeterError,
        BlobError,
        DiskError,
        NoRoom,
    )
    if isinstance(error, type) and issubclass(error, (DeviceError, ModelError, BlobError))
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
        self._settings, self._gate, self._link = settings, gate, link
        terms = lambda: WorkTerms.of(settings, meter, _held_bytes(settings))  # noqa: E731
        self._worker = OnDemandWorker(terms, gate.clock, stays_s)
        self._task: KnownTask | None = None
        self._busy = self._is_paused = False
        self._pending_receipts: list[ReceiptRequest] = []
        self._deaths: tuple[OpenRound | None, tuple[WorkerDeath, ...]] = (None, ())

    @property
    def bundles(self) -> Bundles:
        return self._task.bundles if self._task else ()

    def hello(self, boot: int) -> Hello:
        """The hello as it was last."""
        return msgspec.structs.replace(self._task.hello, boot=boot) if self._task else bare_hello(boot)

    def warm_up(self) -> None:
        try:
            self._worker.running()
        except WorkDied as error:
            log.warning("%s", error)

    def preview(self, current: OpenRound) -> RoundPreview:
        preview = self._ask(PreviewRequest(current, self._link.rates)).preview
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
            if deaths and self._gate.clock() >= current.closes_at:
                return _sat_out(offer, deaths, listener)
            waiting = tuple(listener.waiting(offer.run))
            request = WorkRequest(current, self._link.rates, waiting, listener.paused_s(), deaths)
            attempt = _Attempt(offer, listener)
            try:
                return self._ask(request, listener.progress, attempt.pass_on).finished
            except WorkDied as error:
                if attempt.reported:
                    return True
                if not attempt.form:
                    raise
                log.warning("%s given up: %s", attempt.form, error)
                self._deaths = (before, (*deaths, WorkerDeath(attempt.form, str(error), error.killed)))
                self._worker.start_at_once()  # each time there is one form less to try
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
        child = self._worker.child
        if self._busy and not self._is_paused and child and child.rpc.silent_s >= PAUSED_SILENT_S:
            raise self._worker.died(f"{ENDED}: it did not pause within {PAUSED_SILENT_S:.0f} s")

    def end_if_idle(self) -> None:
        if not self._busy and self._worker.idle:
            self.save_state()
            self.close()

    def save_state(self) -> None:
        """A process that has not answered any request has nothing in memory, and is not waited for."""
        try:
            if self._pending_receipts or self._worker.has_answered:
                self._ask(SaveStateRequest())
        except WorkDied as error:
            log.warning("%s, when it was to end", error)

    def close(self) -> None:
        self._worker.end()

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
        child = self._worker.running()
        done, end_reason = 0.0, ""
        self._busy, self._is_paused = True, False
        try:
            child.rpc.send(request)
            while not isinstance(message := child.rpc.receive(LOOK_S), Ended):
                if message is None and (why := self._endless(request, child)):
                    raise self._worker.died(f"{ENDED}: {why}")
                if message is None or isinstance(message, ProgressReport):
                    done = message.done if message else done
                    self._is_paused = message is not None  # it waits for the reply to its report
                    end_reason = end_reason or _end_reason(progress, done)
                if isinstance(message, ProgressReport):
                    child.rpc.send(ProgressReply(self._gate.paused_s(), end_reason))
                elif message is not None:
                    handle(message)
        except WorkerGone:
            self.close()
            raise self._worker.died(child.end_description, child.killed) from None
        except BaseException:
            self.close()
            raise
        finally:
            self._busy = False
        is_work = isinstance(request, (WorkRequest, EvaluateModelRequest, KeepModelRequest))
        self._worker.answered(message.cpu_s, is_work)
        if message.error is not None:
            name, text = message.error
            raise ERRORS.get(name, DeviceError)(text)
        self._task = message.task or self._task
        return message

    def _endless(self, request: Request, child: Child) -> str:
        """Why the process is not waited for any longer; empty if it is."""
        silent_s = child.rpc.silent_s
        if (
            isinstance(request, WorkRequest)
            and self._gate.clock() >= request.current.closes_at
            and silent_s >= CLOSED_SILENT_S
        ):
            return f"it said nothing for {CLOSED_SILENT_S:.0f} s when its round had closed"
        return f"it said nothing for {SILENT_S:.0f} s" if silent_s >= SILENT_S else ""

    def _send_receipt(self, request: ReceiptRequest) -> None:
        """Send a receipt; a BlobError is only logged, as the receipt does not come again. Raises WorkDied."""
        try:
            self._ask(request)
        except BlobError as error:
            log.warning("round %d: %s", request.message.round, error)
        except WorkDied:
            self._pending_receipts.append(request)
            raise


@dataclass
class _Attempt:
    """One attempt to work on a round: the form that it tries, and whether its result was reported."""

    offer: Offer
    listener: BackendListener
    form: str = ""
    reported: bool = False

    def pass_on(self, message: WorkerMessage) -> None:
        """Pass a report of the worker on to the device."""
        if isinstance(message, PlanReport):
            self.form = message.plan.kind
            self.listener.decided(self.offer, message.plan, message.room_bytes)
        elif isinstance(message, ResultReport):
            self.reported = True
            self.listener.on_result(message.result)


def _sat_out(offer: Offer, deaths: tuple[WorkerDeath, ...], listener: BackendListener) -> bool:
    """Report why the round has no contribution; its work is over."""
    reasons = tuple(f"{death.label} given up: {death.why}" for death in deaths)
    plan = sat_out_plan(offer.task, offer.round, reasons)
    listener.decided(offer, plan, 0.0)
    listener.on_result(WorkResult(offer.run, offer.round, reasons=reasons))
    return True


def _held_bytes(settings: Settings) -> int:
    """Bytes held by this process; 0 if no memory limit is set."""
    if settings.memory_bytes is None:
        return 0
    return resident_bytes()


def _end_reason(progress: Callable[[float], None], done: float) -> str:
    """Why the work must end, if its round is over; else empty."""
    try:
        progress(done)
    except RoundOver as error:
        return str(error)
    return ""
