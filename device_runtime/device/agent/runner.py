"""Executes the commands of the device's state machine and feeds it events.

Training runs in this process, in another, or at a site's devices: the backend decides that. While a command
runs, its callbacks tell the machine of events and do what it commands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf

import msgspec

from device_runtime.broker.errors import BlobError, DiskError
from device_runtime.broker.wire.messages import Blob, Get, Offer, Plan, Receipt
from device_runtime.device.backend import base
from device_runtime.device.backend.base import BackendListener, MakeBackend, WorkBackend, WorkResult
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.connection.presence import DeviceMessages
from device_runtime.device.delivery.downloads import Downloads, prune, store
from device_runtime.device.delivery.sending import ContributionSender, Outbox, counts
from device_runtime.device.energy import resting
from device_runtime.device.errors import (
    DeviceError,
    RoundLeftOut,
    RoundOver,
    RoundRested,
    StaleBase,
    WorkDied,
    WorkStopped,
)
from device_runtime.device.machine import events as ev
from device_runtime.device.machine.step import step
from device_runtime.device.policy.work_gate import LOOK_S, WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.settings import Settings
from device_runtime.machine_readings import collect_and_trim
from device_runtime.system_errors import is_of_disk, shortage

from .machine_inputs import entry_of, first_state, names, offered_of, why_of

log = logging.getLogger(__name__)

DISK_WAIT_S, DISK_MOST_WAIT_S = 1.0, 30.0
"""Seconds until a full or failing disk is tried again, doubled each time."""


def in_this_process(settings: Settings, gate: WorkGate, link: LinkSpeed) -> WorkBackend:
    """Makes the backend that works in this process."""
    from device_runtime.device.backend.in_process import InProcess  # imports numpy and the engines

    return InProcess(settings, gate, link)


class Runner:
    """The machine's `state`, and all that its commands act on.

    `stop` ends work in progress. `hear` handles a message, waiting for it for so many seconds.
    """

    def __init__(
        self,
        settings: Settings,
        gate: WorkGate,
        messages: DeviceMessages,
        make: MakeBackend = in_this_process,
    ) -> None:
        self.outbox = Outbox(settings.folder / "outbox")
        self.blobs = store(settings.folder, settings.disk_bytes)
        self.stop = threading.Event()
        self.hear: Callable[[float], object] = lambda _: None
        self.state = first_state(settings, self.outbox)
        self._settings, self._gate, self._messages, self._clock = settings, gate, messages, gate.clock
        self._link_speed = LinkSpeed()
        self.backend = make(settings, gate, self._link_speed)
        self._downloads = Downloads(self.blobs, messages.ask, self._arrived)
        self._sending = ContributionSender(self.outbox, messages)
        self._offers: dict[int, OpenRound] = {}
        self._last_number = 0
        self._named: dict[str, Blob] = {}
        self._plan: tuple[Plan, float] | None = None
        self._result: WorkResult | None = None
        self._receipt: Receipt | None = None
        self._share = 0.0
        self._warned = ""
        self._disk_at, self._disk_wait_s = -inf, DISK_WAIT_S

    def feed(self, event: ev.DeviceEvent) -> None:
        """Tell the machine of an event, and do what it commands.

        Raises DataError, ModelError, OutOfMemory for errors that waiting does not solve.
        """
        following: ev.DeviceEvent | None = event
        while following is not None:
            self.state, commands = step(self.state, following)
            self._messages.task = self.state.task
            following = None
            for command in commands:
                if not (self._say(command) or self._note(command)):
                    following = self._work(command)

    def tick(self) -> None:
        """Time has passed. Raises as `feed`."""
        now = self._clock()
        if now >= self._disk_at:
            self.outbox.save()
            self.feed(ev.Tick(now, self._in_flight()))
        self.backend.end_if_idle()

    def look_at_gate(self) -> None:
        """Tell the machine if the owner's rules have changed their verdict. Raises as `feed`."""
        allows, quiet = self._gate.open(), self._gate.verdict.quiet
        if allows == self.state.paused or (not allows and quiet != self.state.quiet):
            self.feed(ev.WorkGateChanged(self._clock(), allows, quiet))

    def link_up(self) -> None:
        """The link is connected. Raises as `feed`."""
        self.feed(ev.LinkUp(self._clock(), self._in_flight()))

    def take(self, open_round: OpenRound, to_all: bool, retained: bool = False, over: bool = False) -> None:
        """Take an offer that is trusted; the arguments are those of `OfferReceived`."""
        self._last_number += 1
        offers = {offer.number: self._offers[offer.number] for offer in self.state.offers}
        opened = replace(open_round, member="") if open_round.offer.done else open_round
        self._offers = {**offers, self._last_number: opened}
        offer, flight = offered_of(self._last_number, open_round), self._in_flight()
        run = self.state.heard[0]
        self.feed(ev.OfferReceived(self._clock(), offer, to_all, retained, over, flight))
        if self.state.heard[0] != run and not open_round.offer.done:
            log.info("in task %r", self.state.task)

    def withdrawn(self, task: str, why: str) -> None:
        """The broker has no offer of a task any more. Raises as `feed`."""
        if task == self.state.task and not (self.state.done or self.state.withdrawn):
            log.warning("%s. Waiting for an offer", why)
        self.feed(ev.OfferWithdrawn(self._clock(), task))

    def hello(self) -> None:
        """Say hello, because the samples have changed."""
        self.feed(ev.SamplesChanged(self._clock()))

    def leave_when_done(self) -> None:
        """Go on to no other task when the device's task is done."""
        rules = msgspec.structs.replace(self.state.rules, leaves=True)
        self.state = msgspec.structs.replace(self.state, rules=rules)

    def ask_whole_offer(self, error: Exception) -> None:
        """Ask for the whole offer, unless a hello already waits for its answer."""
        if self.state.hello_s is None:
            log.info("%s", error)
        self.feed(ev.WholeOfferNeeded(self._clock()))

    def take_receipt(self, receipt: Receipt) -> None:
        """Take a receipt. Raises BlobError, WorkDied: then its contribution is sent again."""
        message, wait_s = self.outbox.named(receipt), receipt.retry_after_s
        if message is None:
            return
        if wait_s:
            log.warning("round %d: %s again in %g s: %s", receipt.round, message.kind, wait_s, receipt.reason)
        self._receipt = receipt
        self.feed(ev.ReceiptReceived(self._clock(), message.seq, counts(receipt), wait_s))

    def block(self, sha: bytes, index: int, data: bytes) -> None:
        """Take a block that came."""
        self._downloads.received(sha, index, data, self._clock())

    def answer(self, get: Get) -> None:
        """Send the blocks asked for; not while a network rule says no: they must be asked for again."""
        if not self._gate.verdict.quiet:
            self._messages.blocks(self.blobs, get)

    def warn(self, text: str) -> None:
        """Log a warning once in a row: what is tried at each tick may fail at each."""
        if text != self._warned:
            log.warning("%s", text)
        self._warned = text

    def progressed(self, done: float) -> None:
        """Called between steps of training, `done` from 0 to 1. Raises as `pause_point` does."""
        self._share = done
        self.pause_point()

    def pause_point(self) -> None:
        """Called between steps of work: holds the training while the device is paused.

        Raises WorkStopped when the device is to stop, or when its training is cancelled; RoundOver when the
        round closed during the pause; OutOfMemory when memory runs out.
        """
        self._check_stopped()
        if self.state.training is not None:
            self.look_at_gate()
            if self.state.paused:  # an earlier hold was ended by an error
                self._hold()

    def _check_stopped(self) -> None:
        if self.stop.is_set():
            raise WorkStopped(f"stopped with {self._share:.0%} of an update done: it is not sent")
        training, cancelled = self.state.training, self.state.cancelled
        if training is None or not cancelled:
            return
        if cancelled == "closed":
            raise RoundOver(f"{self._share:.0%} done when the round closed; {self._gate.reason}")
        raise WorkStopped(f"round {training.round} given up, {self._share:.0%} done: {self._gate.reason}")

    def _say(self, command: ev.DeviceCommand) -> bool:
        """Send a message to the aggregator; returns whether the command was one."""
        match command:
            case ev.SayHello():
                if self.state.hello_wait_s > ev.RESEND_S:
                    self.warn("no aggregator answers: is `serve` running? This device goes on asking")
                self._say_hello(command.least)
            case ev.SayPaused():
                self._messages.paused(command.yes)
            case ev.SendPlan():
                if self._plan is not None:
                    self._messages.plan(*self._plan)
            case ev.SendSatOut():
                reasons = (self._gate.reason,)
                self._messages.plan(base.sat_out_plan(command.task, command.round, reasons), 0.0)
            case ev.Send():
                self._send(command.seq, command.first)
            case _:
                return False
        return True

    def _note(self, command: ev.DeviceCommand) -> bool:
        """Do what is done at once and not answered; returns whether the command was so."""
        match command:
            case ev.JoinTask():
                log.info("asking to join task %r", command.task)
            case ev.TaskDone():
                log.info("task %r is done after round %d", command.task, command.round)
            case ev.RestartDownloads():
                self._downloads.restart()
            case ev.ForgetAggregator():
                self._sending.forget()
            case ev.ExpectBlobs():
                for blob in self._offers[command.number].offer.base.checkpoint:
                    if blob.hex in command.blobs:
                        self._downloads.expect(blob, self._clock())
            case ev.FetchAhead():
                parts = self._offers[command.number].offer.base.checkpoint
                self._downloads.advance([x for x in parts if not self.blobs.has(x)], self._clock())
            case ev.CloseContribution():
                self._sending.close(command.seq, over=command.reason == "round over")
            case ev.RoundEnded():
                log.debug("round %d of %s: %s", command.round, command.run, command.reason)
            case ev.FinalModelMissed():
                task = self._offers[command.number].offer.task
                log.warning("the model of task %r has not come in time", task)
            case ev.Prune():
                offer = self._offers[command.number].offer
                prune(self.blobs, offer, [message.blob for message in self.outbox])
            case ev.Cancel():
                pass  # the next `pause_point` ends the training, by the state
            case _:
                return False
        return True

    def _work(self, command: ev.DeviceCommand) -> ev.DeviceEvent | None:
        """Do what is answered by an event; returns that event, or None if it comes later."""
        match command:
            case ev.Keep():
                return self._keep()
            case ev.Settle():
                return self._settle(command)
            case _ if isinstance(command, ev.OfferCommand):
                return self._work_on(command, self._offers[command.number])
        self._hold()
        return None

    def _work_on(self, command: ev.OfferCommand, current: OpenRound) -> ev.DeviceEvent | None:
        """Do some work on an offer; returns the event of its end or failure, or None if that comes later."""
        evaluating = self.state.evaluating == command.number
        try:
            event = self._event_of_work(command, current)
            if not isinstance(command, ev.Preview):  # which writes nothing
                self._disk_wait_s = DISK_WAIT_S
        except (BlobError, StaleBase, WorkDied, RoundLeftOut, WorkStopped, OSError) as raised:
            error = self._device_error(raised)
            if isinstance(error, DiskError):
                self._disk_at = self._clock() + self._disk_wait_s
                self._disk_wait_s = min(2 * self._disk_wait_s, DISK_MOST_WAIT_S)
            self._log_failure(error, command.number, current.offer, evaluating)
            event = ev.WorkFailed(self._clock(), command.number, why_of(error), current.base.whole)
        bundles = names(self.backend.bundles)
        if bundles != self.state.bundles:
            self.feed(ev.TaskKnown(self._clock(), bundles))
        return event

    @staticmethod
    def _device_error(raised: BlobError | DeviceError | OSError) -> BlobError | DeviceError:
        """The error; one of a full or failing disk as DiskError. Raises other OSErrors."""
        if not isinstance(raised, OSError):
            return raised
        if not is_of_disk(raised):
            raise raised
        return DiskError(shortage(raised) or str(raised))

    def _event_of_work(self, command: ev.OfferCommand, current: OpenRound) -> ev.DeviceEvent | None:
        """Do some work on an offer; returns the event that answers the command, if it is known."""
        number, begun = command.number, self._clock()
        match command:
            case ev.Preview():
                preview = self.backend.preview(current)
                self._offers[number] = replace(current, member=preview.member)
                self._named = {blob.hex: blob for blob in preview.missing}
                return ev.Previewed(self._clock(), number, tuple(self._named))
            case ev.Fetch():
                blobs = [self._named[blob] for blob in command.blobs]
                return None if self._downloads.advance(blobs, begun) else ev.FetchRefused(begun, number)
            case ev.Prepare():
                self._downloads.advance((), begun)  # nothing is fetched any longer
                self.backend.prepare(current)
                return ev.Prepared(self._clock(), number)
            case ev.Train():
                self._share = 0.0
                over = self.backend.work(current, self._listener())
                return (ev.Trained if over else ev.TrainingGoesOn)(self._clock(), number)
            case ev.Evaluate():
                self.backend.evaluate_personal_model(current, self.pause_point)
                return ev.Evaluated(self._clock(), number, self._clock() - begun)
            case ev.KeepFinalModel():
                self.backend.keep_final_model(current, self.pause_point)
                return ev.Evaluated(self._clock(), number)

    def _log_failure(self, error: Exception, number: int, offer: Offer, evaluating: bool) -> None:
        """Log why work on an offer has failed."""
        if isinstance(error, WorkStopped):
            log.info("%s", error)
        elif self.state.final is not None and self.state.final.number == number:
            self.warn(f"the model of task {offer.task!r} is not kept: {error}")
        elif evaluating:
            self.warn(f"after round {offer.round}: {error}")
        elif isinstance(error, RoundLeftOut):
            if str(error) != self._warned:  # told once in a row, whatever the round
                level = logging.INFO if isinstance(error, RoundRested) else logging.WARNING
                log.log(level, "round %d left out: %s", offer.round, error)
            self._warned = str(error)
            self._messages.plan(base.sat_out_plan(offer.task, offer.round, (str(error),)), 0.0)
        else:
            self.warn(f"round {offer.round}: {error}")

    def _listener(self) -> BackendListener:
        return BackendListener(
            self.progressed,
            self.pause_point,
            self._gate.paused_s,
            self._decided,
            self._on_result,
            lambda offer: self.state.has_answered(offer.run, offer.round),
            lambda run: {entry.round for entry in self.state.outbox if entry.run == run},
            lambda: self.feed(ev.WorkerDied(self._clock())),
        )

    def _hold(self) -> None:
        """Hold the training: handle messages and send until work is allowed. Raises as `pause_point`."""
        collect_and_trim()
        with self._gate.on_hold(), resting(self._settings.meter):
            while self.state.paused:
                self.tick()
                self.hear(LOOK_S)
                self._check_stopped()
                self.backend.check_paused_work()
                self.look_at_gate()

    def _decided(self, offer: Offer, plan: Plan, room_bytes: float) -> None:
        """Send the plan now, so that it travels while the device computes."""
        self._plan = (plan, room_bytes)
        self.feed(ev.PlanMade(self._clock(), plan.task, plan.round))

    def _on_result(self, result: WorkResult) -> None:
        self._result = result
        if result.message is not None:
            self.feed(ev.Made(self._clock(), result.run, result.round, "contribution"))
        elif result.trouble:
            log.warning("round %d left out: %s", result.round, result.trouble)
            self.feed(ev.Made(self._clock(), result.run, result.round, "failed"))
        else:
            log.warning("round %d: sitting out: %s", result.round, "; ".join(result.reasons))
            self.feed(ev.Made(self._clock(), result.run, result.round, "sat out"))

    def _keep(self) -> ev.DeviceEvent:
        """Write a contribution to disk, with the boot and number that its receipt will name."""
        result, self._result = self._result, None
        if result is None or result.message is None:
            raise TypeError("there is no contribution to keep")
        try:
            message = self._sending.keep(result.message)
        except (BlobError, OSError) as error:
            log.warning("round %d left out: its contribution cannot be kept: %s", result.round, error)
            return ev.KeepFailed(self._clock(), result.run, result.round)
        self._transferred(up=result.bytes_up)
        return ev.Kept(self._clock(), entry_of(message), self._in_flight())

    def _send(self, seq: int, first: bool) -> None:
        try:
            compact = self._sending.send(seq, first)
        except OSError as error:
            self.warn(f"the contribution {seq} of an earlier process cannot be sent: {error}")
            return
        entry = self.state.waiting(seq)
        if entry is not None and entry.compact != compact:
            self.feed(ev.Sent(self._clock(), seq, compact))

    def _settle(self, command: ev.Settle) -> ev.DeviceEvent:
        """Take a receipt. Raises as `take_receipt`."""
        receipt, message = self._receipt, self.outbox.message(command.seq)
        if receipt is None:
            raise TypeError("there is no receipt to take")
        self.backend.receipt_received(message, command.counts)
        self._sending.settle(command.seq, receipt)
        now, size = self._clock(), message.blob.size if message.blob else 0
        self._link_speed.saw_up(size, 0.0 if command.first_s is None else now - command.first_s)
        return ev.Settled(now, command.seq, command.counts)

    def _say_hello(self, least: int) -> None:
        boot, ready = self._messages.boot, bool(self.backend.bundles)
        hello = self.backend.hello(boot) if ready else base.bare_hello(boot)
        samples = max(hello.num_examples, least if ready else 0)
        self._messages.hello(msgspec.structs.replace(hello, num_examples=samples))
        if samples != self.state.samples:
            self.feed(ev.HelloSaid(self._clock(), samples))

    def _in_flight(self) -> ev.MessagesInFlight:
        unacknowledged = self._messages.unacknowledged
        if not (messages := unacknowledged()):
            return ev.MessagesInFlight()
        return ev.MessagesInFlight(messages, unacknowledged("hello"), unacknowledged("contribution"))

    def _arrived(self, blob: Blob, seconds: float) -> None:
        self._link_speed.saw_down(blob.size, seconds)
        self.feed(ev.BlobArrived(self._clock(), blob.hex))
        self._transferred(down=blob.size)

    def _transferred(self, up: int = 0, down: int = 0) -> None:
        """Wait as long as an emulated link would take, once the task is known."""
        if self._settings.emulation is not None and self.backend.bundles:
            self._settings.emulation.transfer(up, down)
