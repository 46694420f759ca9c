"""Backend that works on rounds in this process."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import INLINE_LIMIT, Contribution, Hello, Mask, Offer
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.delivery.cache import ModelCache
from device_runtime.device.delivery.error_feedback import ErrorFeedback, FeedbackKey
from device_runtime.device.engine.engine_guard import guarded, limit_bytes
from device_runtime.device.errors import RoundLeftOut, RoundOver, RoundRested, UnusableBase, WorkerDeath
from device_runtime.device.policy.work_gate import LOOK_S, WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.local_task import DeviceTask
from device_runtime.device.training.one_task import MakeTask, OneTask, RoundInputs
from device_runtime.device.training.settings import Settings
from device_runtime.device.training.work import ClosedWhilePaused, Decision, Listener, WorkOutcome
from device_runtime.models.errors import BundleError, NoSamples, TensorError
from device_runtime.strategies.directions.directions import UnknownGenerator
from device_runtime.strategies.errors import KindError, MaskError
from device_runtime.strategies.training.workload import ENVELOPE_BYTES
from device_runtime.system_errors import is_of_disk

from . import base
from .base import LEFT, BackendListener, Bundles, RoundPreview, WorkResult, bundles_of

log = logging.getLogger(__name__)

SHORTENED = "its changes were shortened to fit a masked sum"
"""A reason in the plan of a masked update."""
DISK_WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds after which a full disk is tried again for a contribution; then the round is left out."""
ROUND_ERRORS = (UnusableBase, KindError, TensorError, BundleError, UnknownGenerator, NoSamples)
"""Errors of one round or its bundle, which do not concern the next."""


class InProcess:
    """See `WorkBackend`. Holds the task (`task`, once its bundles are here) and the base of the last round.

    `deaths` are forms that were already tried in the current round and ended the worker process.
    """

    def __init__(
        self,
        settings: Settings,
        gate: WorkGate,
        link: LinkSpeed,
        make: MakeTask = DeviceTask,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`make` makes the task. `draw` gives so many random bytes, for the secrets of masks."""
        self.task: OneTask | None = None
        memory = None if settings.emulation else lambda: limit_bytes(None, settings.memory_bytes)
        self.cache = ModelCache(settings.folder, settings.disk_bytes, memory)
        self.bundles: Bundles = ()
        self.deaths: tuple[WorkerDeath, ...] = ()
        self._settings, self._gate, self._link, self._make, self._draw = settings, gate, link, make, draw
        self._error_feedback = ErrorFeedback(settings.folder / LEFT)
        self._inputs: RoundInputs | None = None

    def hello(self, boot: int) -> Hello:
        return self.task.hello(boot) if self.task else base.bare_hello(boot)

    def warm_up(self) -> None:
        """Does nothing."""

    def preview(self, current: OpenRound) -> RoundPreview:
        """Of a family, only the base of the model that the device would train now is needed."""
        offer = current.offer
        with round_errors_as_left_out():
            if why := self._settings.allowed.refuses(blob for _, blob in bundles_of(offer)):
                raise RoundLeftOut(why)
            if offer.kinds and not offer.done and (why := self._settings.allowed.refuses_masks(offer.masks)):
                raise RoundLeftOut(why)
            if missing := self.cache.missing_bundles(offer):
                return RoundPreview(current.member, missing)
            if current.member is None or self.bundles != bundles_of(offer):
                task, remaining_s = self._task_of(offer), current.closes_at - self._gate.clock()
                if current.member is None:
                    if why := task.rest_reason(offer, remaining_s):
                        raise RoundRested(why)
                    current = replace(current, member=task.member(offer, remaining_s))
                self.cache.take_parts(task.bundle(current.member or ""), current.base)
            return RoundPreview(current.member, self.cache.missing(current.base, offer.aside))

    def prepare(self, current: OpenRound) -> None:
        with round_errors_as_left_out():
            self._inputs_of(current)

    def work(self, current: OpenRound, listener: BackendListener) -> bool:
        offer = current.offer
        with round_errors_as_left_out():
            inputs = self._inputs_of(current)
            task = self._task_of(offer)
            if before := task.unsent(offer):
                self._report(task, *before, listener)
            with guarded(task.engine_guard, _ending_paused_work(listener.pause_point)):
                inputs_now = replace(inputs, deaths=self.deaths)
                outcome = task.train_round(inputs_now, current.closes_at, _listener(offer, listener))
            if outcome is None:
                return False
            self._report(task, inputs, outcome, listener)
            return True

    def evaluate_personal_model(self, current: OpenRound, pause_point: Callable[[], None]) -> None:
        with round_errors_as_left_out():
            inputs, task = self._inputs_of(current), self._task_of(current.offer)
            self._inputs = None
            task.evaluate_personal_model(inputs, pause_point)

    def keep_final_model(self, over: OpenRound, pause_point: Callable[[], None]) -> None:
        with round_errors_as_left_out():
            inputs, task = self._inputs_of(over), self._task_of(over.offer)
            self._inputs = None
            task.keep_final_model(inputs, pause_point)

    def receipt_received(self, message: Contribution, counts: bool) -> None:
        self._error_feedback.settle(message.run, message.kind, message.round, counts)

    def check_paused_work(self) -> None:
        if self.task is not None:
            self.task.engine_guard.check_alarm()

    def end_if_idle(self) -> None:
        """Does nothing."""

    def save_state(self) -> None:
        self.cache.save_replay_state()

    def close(self) -> None:
        """Does nothing."""

    def _inputs_of(self, current: OpenRound) -> RoundInputs:
        """The inputs of a round; the same again while its work goes on. Raises as the methods do."""
        offer, member, inputs = current.offer, current.member or "", self._inputs
        task = self._task_of(offer)
        if inputs is None or (inputs.offer, inputs.member) != (offer, member):
            weights = self.cache.base(current.base, task.bundle(member).manifest)
            self._inputs = inputs = RoundInputs(offer, member, weights, self.cache.aside(offer.aside))
        return inputs

    def _task_of(self, offer: Offer) -> OneTask:
        """The task of the offer's bundles, made if it is not the current one. Raises as the methods do."""
        if self.task is None or self.bundles != bundles_of(offer):
            self.task, self._inputs, self.bundles = None, None, ()  # frees its memory for the next
            models = {member: self.cache.bundle(blob) for member, blob in bundles_of(offer)}
            self.task = self._make(self._settings, models, self._gate.work_clock, self._link)
            self.bundles = bundles_of(offer)
        return self.task

    def _report(
        self, task: OneTask, inputs: RoundInputs, outcome: WorkOutcome, listener: BackendListener
    ) -> None:
        """Save the state of the kind and the codec, then report the contribution.

        Of a masked update nothing is saved in the clear: a contribution that was kept is sent again as it is.
        """
        offer, update = inputs.offer, outcome.update
        if listener.answered(offer):
            return
        if update is None:
            listener.on_result(WorkResult(offer.run, offer.round, reasons=outcome.reasons))
            return
        for wait_s in (*DISK_WAITS_S, None):
            try:
                body, mask = self._content(task, inputs, outcome, listener)
                blob = self.cache.blobs.put(body) if len(body) > INLINE_LIMIT else None
                sent = bytes(body) if blob is None else blob
                message = base.contribution_message(offer, outcome, sent, mask)
                task.keep(offer, update)
            except (BlobError, OSError) as error:
                if wait_s is not None and is_of_disk(error) and _waited(wait_s, error, offer, listener):
                    continue
                trouble = f"its contribution cannot be kept: {error}"
                listener.on_result(WorkResult(offer.run, offer.round, trouble=trouble))
            except (TensorError, MaskError) as error:
                listener.on_result(WorkResult(offer.run, offer.round, trouble=str(error)))
            else:
                listener.on_result(WorkResult(offer.run, offer.round, message, len(body) + ENVELOPE_BYTES))
            return

    def _content(
        self, task: OneTask, inputs: RoundInputs, outcome: WorkOutcome, listener: BackendListener
    ) -> tuple[bytes | memoryview, Mask | None]:
        """The content of a contribution and, with masks, its mask. Saves what the codec has left out."""
        offer, update = inputs.offer, outcome.update
        if update is None:
            raise ValueError("nothing was contributed")
        if offer.masks is not None:
            from device_runtime.device.masking.masked_update import SECRET_BYTES, UpdateMasker

            masker = UpdateMasker(offer, self._settings.name, self._draw(SECRET_BYTES))
            masked = masker.masked(update, task.bundle(inputs.member).manifest, inputs.base)
            _tell_shortened(masked.shortened, inputs, outcome, listener)
            return masked.body, masked.mask
        key, waiting = FeedbackKey(offer.run, update.kind, inputs.member), listener.waiting(offer.run)
        encoded = task.encoded(inputs, outcome, self._error_feedback.get(key, waiting))
        if encoded.left is not None:
            self._error_feedback.put(key, offer.round, waiting, encoded.left)
        return encoded.body, None


def _waited(seconds: float, error: Exception, offer: Offer, listener: BackendListener) -> bool:
    """Wait for room on the disk; returns whether the round is still open."""
    log.warning("round %d: %s; trying again in %g s", offer.round, error, seconds)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            listener.pause_point()
            time.sleep(min(LOOK_S, seconds))
    except RoundOver:
        return False
    return True


def _tell_shortened(why: str, inputs: RoundInputs, outcome: WorkOutcome, listener: BackendListener) -> None:
    """Log what was shortened of a masked update, and say that it was in a plan, without the factor.

    The factor would tell of one device's update. With noise every update may be clipped: the plan is not
    sent again.
    """
    offer = inputs.offer
    if not why or offer.masks is None:
        return
    clips = bool(offer.masks.clip_milli)
    log.log(logging.INFO if clips else logging.WARNING, "round %d: %s", offer.round, why)
    if not clips:
        decision = Decision(outcome.plan, (*outcome.gave_up, SHORTENED), inf)
        listener.decided(offer, base.plan_message(offer, decision), decision.room_bytes)


@contextmanager
def round_errors_as_left_out() -> Iterator[None]:
    """Raises RoundLeftOut in place of errors that concern one round only."""
    try:
        yield
    except ROUND_ERRORS as error:
        raise RoundLeftOut(str(error)) from error


def _listener(offer: Offer, listener: BackendListener) -> Listener:
    def decided(decision: Decision) -> None:
        listener.decided(offer, base.plan_message(offer, decision), decision.room_bytes)

    def progress(done: float) -> None:
        _ending_paused_work(partial(listener.progress, done))()

    return Listener(progress, decided, listener.paused_s)


def _ending_paused_work(pause_point: Callable[[], None]) -> Callable[[], None]:
    """The same function, raising ClosedWhilePaused, which ends paused work, in place of RoundOver."""

    def called() -> None:
        try:
            pause_point()
        except RoundOver as error:
            raise ClosedWhilePaused(str(error)) from None

    return called
