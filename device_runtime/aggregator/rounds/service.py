"""The service of one task: a thread that takes messages from the broker link and drives the rounds.

`run` is the loop; `start`, `handle` and `tick` are its parts, for a caller with its own loop.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from pathlib import Path

from device_runtime.aggregator.delivery.last_will import HeldWills
from device_runtime.aggregator.delivery.offers import OfferMaker
from device_runtime.aggregator.errors import DatabaseError, NoContributions, RunFolderError, UpdateRefused
from device_runtime.aggregator.intake.check_process import CheckedMessage
from device_runtime.aggregator.intake.limits import RATE, KnownDevices, RateLimit, message_cost
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.listener import DeviceSeen, PlanMade, RunEvent, Started
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.signing import NotTrusted
from device_runtime.broker.wire import compact_round, link, topics
from device_runtime.broker.wire import messages as wire

from . import events
from .given_rounds import GivenRound
from .ports import Ports
from .run import OpenRun
from .runner import RoundRunner
from .state import RoundsState

log = logging.getLogger(__name__)

TICK_S = 0.05
"""Seconds between ticks of the loop."""
LINGER_S = 2.0
"""Seconds that a finished service stays, at most, so that devices learn that it is done, and leave."""
FETCHED_S, MOST_LINGER_S = 10.0, 60.0
"""Seconds that it stays after a device has asked for a part of the model; and at most, all together."""


MOST_REASONS = 64
"""Reasons of a plan that are kept and reported; a device sends one for each form that it does not choose."""
SIGNED = ("hello", "plan", "contribution")
"""Messages that devices with a key sign."""


class Service:
    """The aggregator of one task, with its run in `folder`; resumes a run that is there.

    The constructor raises as `OpenRun`. Later, RunFolderError or BlobError is raised when the disk fails, and
    DatabaseError when its server is lost; nothing that a device sends raises.
    """

    def __init__(self, task: Task, folder: Path, ports: Ports, given: bool = False) -> None:
        """`given`: a round begins only when it is given with `give`."""
        self._rounds = OpenRun(task, folder, given, ports.database)
        self._ports = ports
        self._run = RoundRunner(self._rounds, ports, self._tell)
        self._done_s: float | None = None
        self._until_s = 0.0
        self._wills = HeldWills(ports.will_grace_s)
        self._flood, self._forged = RateLimit(), RateLimit()
        self._whole: dict[str, wire.Contribution] = {}
        self._crowd = KnownDevices(self._is_away, self._forget, ports.max_devices)

    @property
    def state(self) -> RoundsState:
        """The state of the round machine; frozen."""
        return self._run.state

    @property
    def run_id(self) -> str:
        return self._rounds.run

    @property
    def finished(self) -> bool:
        """Whether the loop may end: the run was abandoned, or is done and no device needs the service.

        That is when they have left, or had time to learn that it is done and to fetch the model.
        """
        if self.state.phase == "given up":
            return True
        if self.state.phase != "done":
            return False
        now = self._ports.clock()
        if self._done_s is None:
            self._done_s, self._until_s = now, now + LINGER_S
        return not self.state.online or now >= min(self._until_s, self._done_s + MOST_LINGER_S)

    @property
    def rounds(self) -> OpenRun:
        """The open run, which is on the disk."""
        return self._rounds

    @property
    def offers(self) -> OfferMaker:
        """Makes the run's offers."""
        return self._run.offers

    def give(self, given: GivenRound) -> None:
        """Gives a later round, or the open one with another deadline; it is stored before it is offered.

        Raises RunFolderError, and ValueError for a round that is neither.
        """
        state, outside, number = self.state, self._rounds.outside, given.number
        later, same = state.phase == "wait" and number > state.round, number == state.round
        if outside is None or not (later or (same and state.phase == "collect")):
            raise ValueError(f"round {number} cannot be given in round {state.round} ({state.phase})")
        outside.keep(given)
        self._run.feed(events.Give(self._ports.clock(), given.deadline_s, number))

    def close_round(self) -> None:
        """Closes the open round; it is merged from the contributions that it has."""
        self._run.feed(events.Close(self._ports.clock()))

    def run(self, stop: threading.Event) -> None:
        """Serves until the task is finished or `stop` is set; either way everything is on disk.

        Raises NoContributions where the run is abandoned: the same command tries again.
        """
        self.start()
        while not (self.finished or stop.is_set()):
            with suppress(queue.Empty):
                self.handle(self._ports.inbox.get(timeout=TICK_S))
                end = self._ports.clock() + TICK_S
                while self._ports.clock() < end:
                    self.handle(self._ports.inbox.get_nowait())
            self.tick()
        if self._run.gave_up:
            raise NoContributions(self._run.gave_up)

    def farewell(self) -> link.Will | None:
        """The retained message that the task is done, for Link.close; None when it is to be resumed."""
        offer = self._run.farewell()
        if offer is None:
            return None
        topic = topics.offer(offer.task)
        return link.Will(topic, self._ports.seal(topic, offer))

    def close(self) -> None:
        """Closes the run folder."""
        self._rounds.store.close()

    def start(self) -> None:
        """Starts a new run, or resumes the one in the folder."""
        rounds = self._rounds
        if rounds.task.evaluation_judges and not rounds.task.eval_data and rounds.outside is None:
            log.info(
                "nothing compares the closed-form head with the trained one: set eval_data or "
                "statistics.hold_out"
            )
        closed = rounds.store.rounds.closed()
        self._tell(Started(rounds.task, rounds.run, rounds.resumed, closed, rounds.manifest))
        self._run.start()
        self._crowd.remember((*self.state.asked, *self.state.devices))

    def tick(self) -> None:
        """Does what time brings about, and commits and receipts what was handled since the last tick.

        Call it several times a second.
        """
        self._run.do_requested_rollback()
        self._hear_wills()
        self._run.reception.tick(self.state.round)
        self._run.feed(events.Tick(self._ports.clock()))
        self._run.settle()
        self._run.out.go_on()

    def handle(self, event: link.Event) -> None:
        """Handles one event of the link. Nothing that a device sends raises."""
        match event:
            case link.Received():
                self._hear_safely(event)
            case link.Connected(first=False):
                self._wills.broker_back(self._ports.clock())
                self._run.reception.restart()
                self._run.offer()
            case link.Disconnected():
                self._wills.broker_lost()
                log.warning("broker: %s; trying again", event.reason)

    def _hear_safely(self, event: link.Received) -> None:
        try:
            self._hear(event)
        except (RunFolderError, DatabaseError):
            raise
        except Exception as error:  # whatever it is, the others must be served
            kind = "" if isinstance(error, BrokerError) else f"{type(error).__name__}: "
            where, why = printable(event.topic), printable(str(error))
            log.warning("message on %s dropped: %s%s", where, kind, why)

    def _hear(self, event: link.Received) -> None:
        address = topics.parse(event.topic)
        device, payload = address.device, event.payload
        if self._is_stranger(address):
            self._say_forged("", f"{address.leaf} of {device}, who is not enrolled")
            if payload and event.retain:
                self._run.out.clear(event.topic)
            return
        if not self._crowd.lets_in(device):
            return
        if event.retain and address.leaf != "state":
            log.warning(
                "message from %s dropped: only presence may be retained, not %s", device, address.leaf
            )
            self._run.out.clear(event.topic)
            return
        if payload and not event.retain:
            self._run.traffic.up(device, event.topic, payload)
        if address.leaf != "block" and not self._within_rate(
            device, message_cost(address.leaf, len(payload))
        ):
            return
        is_signed = address.leaf in SIGNED and wire.is_from_device(payload)
        if address.leaf in SIGNED:
            try:
                payload = self._verified_payload(device, event.topic, payload)
            except NotTrusted as error:
                self._say_forged(device, str(error))
                return
        match address.leaf:
            case "state":
                if payload:  # else it is cleared, by us
                    self._on_state(device, wire.decode(payload, wire.State), event.retain)
            case "hello":
                self._on_hello(device, wire.decode(payload, wire.Hello), is_signed)
            case "plan":
                self._on_plan(device, wire.decode(payload, wire.Plan))
            case "contribution":
                refusal = event.refusal if isinstance(event, CheckedMessage) else None
                message = wire.decode(payload, wire.Contribution)
                self._remember(device, message, len(payload))
                self._on_contribution(device, message, refusal)
            case "c":
                self._on_compact(device, payload)
            case "get":
                self._until_s = max(self._until_s, self._ports.clock() + FETCHED_S)
                self._run.out.blocks(device, wire.decode(payload, wire.Get), self._rounds.store.models)
            case "block":
                if not self._run.reception.block(device, address.sha, (address.index, payload)):
                    self._within_rate(device)  # blocks that are asked for are free
            case "trial":
                pass  # `doctor` looks whether a device may write
            case leaf:
                log.warning("message from %s dropped: no topic ends in %s", device, printable(leaf))

    def _is_stranger(self, address: topics.Address) -> bool:
        """Whether a device is not enrolled, though devices have to be.

        The presence of a known device still counts: one that was revoked may go offline.
        """
        devices, device = self._ports.devices, address.device
        if devices is None or devices.knows(device):
            return False
        return address.leaf != "state" or device not in self.state.devices

    def _verified_payload(self, device: str, topic: str, payload: bytes) -> bytes:
        """Checks a device's signature and returns the message. Raises NotTrusted, MessageError."""
        devices = self._ports.devices
        return (
            devices.verified_payload(device, topic, payload) if devices else wire.device_message_in(payload)
        )

    def _say_forged(self, device: str, what: str) -> None:
        """Logs that a message was dropped because another than the device may have sent it.

        It gets no answer: a refusal would make the real device drop its update. The number of log lines is
        limited; messages of strangers share one limit.
        """
        if self._forged.worth_saying(device, self._ports.clock()):
            log.warning("dropped, perhaps forged: %s", printable(what))

    def _is_away(self, device: str) -> bool:
        known = self.state.devices.get(device)
        return known is None or not known.online

    def _forget(self, device: str) -> None:
        self._wills.heard(device)
        self._whole.pop(device, None)
        self._run.reception.forget(device)
        self._run.forget(device)

    def _within_rate(self, device: str, messages: float = 1.0) -> bool:
        """Whether a device stays within its rate limit with one more message, which counts as `messages`."""
        now = self._ports.clock()
        if self._flood.lets(device, now, messages):
            return True
        if self._flood.worth_saying(device, now):
            log.warning("messages from %s dropped: it sends more than %g a second", device, RATE)
        return False

    def _on_state(self, device: str, state: wire.State, retain: bool) -> None:
        """Takes a device's presence message; holds a last will back for a while, as the device may return."""
        before = self.state.devices.get(device)
        self._wills.heard(device)
        is_will = not (state.online or state.leaving) and before and before.online
        if is_will and self._wills.holds(device, state, retain, self._ports.clock()):
            return
        self._on_presence(device, state, retain)

    def _on_presence(self, device: str, state: wire.State, retain: bool) -> None:
        """Feeds a device's presence to the machine.

        A retained message is of a device that was here before the aggregator started; it may be ready.
        """
        before = self.state.devices.get(device)
        known = before is not None and before.boot == state.boot
        ready = before.ready if before and known else retain and self.state.round > 0
        ready = ready and not state.paused  # until it says hello
        self._run.feed(events.DevicePresent(self._ports.clock(), device, state.boot, state.online, ready))
        if self.state.devices.get(device) != before:
            self._tell(DeviceSeen(device, state.online))
        now = self.state.devices.get(device)
        if not state.online and not (now and now.online):
            self._run.out.clear_state(device)

    def _hear_wills(self) -> None:
        """Applies the last wills of devices that did not come back in time."""
        for device, state in self._wills.due(self._ports.clock()):
            self._on_presence(device, state, retain=True)

    def _on_hello(self, device: str, hello: wire.Hello, signed: bool) -> None:
        """Answers a hello with the open round and the seconds that remain of it (clocks are not compared).

        Before round 1, and for a device that is not asked, the answer is the offer of round 0 (the lobby):
        the device fetches the bundle, measures, and says hello again.
        """
        self._wills.heard(device)
        if hello.task not in ("", self._rounds.task.name):
            name, here = printable(hello.task), self._rounds.task.name
            log.warning("%s asks for task %s; this aggregator has task %s", device, name, here)
            return
        self._run.out.agree(device, hello.key, signed)
        self._run.reception.heard(device, hello.num_examples)
        profile, engine = printable(hello.profile), printable(hello.engine)
        battery = hello.battery_percent if 0 <= hello.battery_percent <= 100 else None
        self._tell(DeviceSeen(device, True, profile, hello.num_examples, engine, hello.memory_bytes, battery))
        self._run.feed(
            events.DevicePresent(self._ports.clock(), device, hello.boot, True, hello.num_examples > 0)
        )
        self._run.answer(device)

    def _on_plan(self, device: str, plan: wire.Plan) -> None:
        if plan.task != self._rounds.task.name:
            return
        kind, reasons = printable(plan.kind), tuple(map(printable, plan.reasons[:MOST_REASONS]))
        self._run.plans[device] = (kind, printable("; ".join(reasons)))
        self._tell(
            PlanMade(
                device=device,
                round=plan.round,
                kind=kind,
                seconds=plan.seconds,
                memory_bytes=plan.memory_bytes,
                energy_j=plan.energy_j,
                reasons=reasons,
            )
        )
        self._run.feed(events.Planned(self._ports.clock(), device, plan.round, plan.kind))

    def _remember(self, device: str, message: wire.Contribution, size: int) -> None:
        """Remembers a device's last full contribution: compact ones leave out what they share with it."""
        self._whole.pop(device, None)
        if message.seq and message.body and size <= compact_round.MOST_BYTES:
            self._whole[device] = compact_round.without_values(message)

    def _on_compact(self, device: str, payload: bytes) -> None:
        """Completes a compact contribution from the device's last full one.

        Without that one it is ignored: the device sends it again in full after a while.
        """
        like = self._whole.get(device)
        if like is None:
            return
        content, mac = compact_round.split_mac(payload)
        signs = self._ports.devices is not None and self._ports.devices.signs(device)
        if signs and not self._run.out.is_authentic(device, like.run, content, mac):
            self._say_forged(device, f"a contribution in few bytes without the MAC of {device}")
            return
        self._on_contribution(device, compact_round.full_contribution(content, like), None)

    def _on_contribution(self, device: str, message: wire.Contribution, refusal: str | None) -> None:
        key = device, message.round, message.kind, message.boot, message.seq
        update = events.Update(*key, samples=message.num_examples, form=message.form)
        try:
            self._run.reception.check_address(message)
        except UpdateRefused as error:
            self._run.reply(events.Reply(update, "refused", str(error)))
            return
        if device not in self.state.devices:
            self._run.feed(events.DevicePresent(self._ports.clock(), device, message.boot, True))
        self._run.reception.announce(update, message, refusal)

    def _tell(self, happening: RunEvent) -> None:
        for observer in self._ports.observers:
            try:
                observer(happening)
            except Exception as error:  # a view that fails must not stop the rounds
                log.warning("observer failed: %s: %s", type(error).__name__, error)
