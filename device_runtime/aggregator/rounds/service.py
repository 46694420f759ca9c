"""The shell around the round machine: one thread, fed by the link's inbox and a clock.

`run` is the loop; `start`, `handle` and `tick` are its parts, for whoever has a loop of their own.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from pathlib import Path

from device_runtime.aggregator.delivery.last_will import LastWills
from device_runtime.aggregator.errors import DatabaseError, NoContributions, RunFolderError, UpdateRefused
from device_runtime.aggregator.intake.check_process import CheckedMessage
from device_runtime.aggregator.intake.limits import RATE, Crowd, Flood, cost
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.listener import DeviceSeen, Happening, PlanMade, Started
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.signing import NotTrusted
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import link, topics
from device_runtime.broker.wire import messages as wire

from . import events as moves
from .given_rounds import GivenRound
from .ports import Ports
from .run import OpenRun
from .runner import Conductor
from .state import RoundsState

log = logging.getLogger(__name__)

TICK_S = 0.05
"""Seconds between looks at the clock."""
LINGER_S = 2.0
"""Seconds that a finished service stays, at most, for the devices to hear of it and leave."""
FETCHED_S, MOST_LINGER_S = 10.0, 60.0
"""Seconds that it stays after one of them has asked for a part of the model; and at most, for all that."""


MOST_REASONS = 64
"""Of a plan, that are kept and told; a device has one for each form of a kind that it does not take."""
SIGNED = ("hello", "plan", "contribution")
"""Messages that devices with a key sign."""


class Service:
    """The aggregator of one task, its run kept in `folder`; resumes what is there.

    Raises what Rounds raises; once it runs, RunFolderError or BlobError when the disk fails, and nothing
    for whatever devices send.
    """

    def __init__(self, task: Task, folder: Path, ports: Ports, given: bool = False) -> None:
        """`given`: rounds begin when they are given, by `give`, and at no other time."""
        self._rounds = OpenRun(task, folder, given, ports.database)
        self._ports = ports
        self._run = Conductor(self._rounds, ports, self._tell)
        self._done_s: float | None = None
        self._until_s = 0.0
        self._wills = LastWills(ports.will_grace_s)
        self._flood, self._forged = Flood(), Flood()
        self._whole: dict[str, wire.Contribution] = {}
        self._crowd = Crowd(self._is_away, self._forget, ports.max_devices)

    @property
    def state(self) -> RoundsState:
        """Of the round machine; frozen."""
        return self._run.state

    @property
    def run_id(self) -> str:
        return self._rounds.run

    @property
    def finished(self) -> bool:
        """Whether all is done, and the devices have left, or had time to hear of it and fetch the model.

        Or the run was given up.
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
        """What is on the disk."""
        return self._rounds

    def give(self, given: GivenRound) -> None:
        """A later round, or the open one with another deadline; on the disk when it is offered.

        Raises RunFolderError, and ValueError for a round that is neither.
        """
        state, outside, number = self.state, self._rounds.outside, given.number
        later, same = state.phase == "wait" and number > state.round, number == state.round
        if outside is None or not (later or (same and state.phase == "collect")):
            raise ValueError(f"round {number} cannot be given in round {state.round} ({state.phase})")
        outside.keep(given)
        self._run.feed(moves.Give(self._ports.clock(), given.deadline_s, number))

    def close_round(self) -> None:
        """The open round is merged from what it has."""
        self._run.feed(moves.Close(self._ports.clock()))

    def run(self, stop: threading.Event) -> None:
        """Serve until the task is finished, or `stop`; either way all is on disk.

        Raises NoContributions where the run is given up: the same command tries again.
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
        """For Link.close: the retained word that the task is done; None when it is to be resumed."""
        offer = self._run.farewell()
        if offer is None:
            return None
        topic = topics.offer(offer.task)
        return link.Will(topic, self._ports.seal(topic, offer))

    def close(self) -> None:
        """Let go of the run folder."""
        self._rounds.store.close()

    def start(self) -> None:
        """Begin, or go on where the folder says."""
        rounds = self._rounds
        if rounds.task.evaluation_judges and not rounds.task.eval_data and rounds.outside is None:
            log.info(
                "nothing compares the closed-form head with the trained one: give eval_data, or "
                "statistics.hold_out, by which devices do"
            )
        closed = rounds.store.closed()
        self._tell(Started(rounds.task, rounds.run, rounds.resumed, closed, rounds.manifest))
        self._run.start()
        self._crowd.remember((*self.state.asked, *self.state.devices))

    def tick(self) -> None:
        """Look at the clock, and give what was handled since its receipts; call it several times a second."""
        self._run.heed()
        self._hear_wills()
        self._run.reception.tick(self.state.round)
        self._run.feed(moves.Tick(self._ports.clock()))
        self._run.settle()
        self._run.out.go_on()

    def handle(self, event: link.Event) -> None:
        """One event of the link. Nothing that a device sends is raised."""
        match event:
            case link.Received():
                self._survive(event)
            case link.Connected(first=False):
                self._wills.broker_back(self._ports.clock())
                self._run.reception.restart()
                self._run.offer()
            case link.Disconnected():
                self._wills.broker_lost()
                log.warning("broker: %s; trying again", event.reason)

    def _survive(self, event: link.Received) -> None:
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
            log.warning("message from %s dropped: only presence is kept, not %s", device, address.leaf)
            self._run.out.clear(event.topic)
            return
        if payload and not event.retain:
            self._run.traffic.up(device, event.topic, payload)
        if address.leaf != "block" and not self._taken(device, cost(address.leaf, len(payload))):
            return
        is_signed = address.leaf in SIGNED and wire.is_from_device(payload)
        if address.leaf in SIGNED:
            try:
                payload = self._said(device, event.topic, payload)
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
                self._on_short(device, payload)
            case "get":
                self._until_s = max(self._until_s, self._ports.clock() + FETCHED_S)
                self._run.out.blocks(device, wire.decode(payload, wire.Get), self._rounds.store.models)
            case "block":
                if not self._run.reception.block(device, address.sha, (address.index, payload)):
                    self._taken(device)  # blocks that are asked for are free
            case "trial":
                pass  # `doctor` looks whether a device may write
            case leaf:
                log.warning("message from %s dropped: no topic ends in %s", device, printable(leaf))

    def _is_stranger(self, address: topics.Address) -> bool:
        """Whether it is not enrolled, where devices are. That one goes which was revoked is heard of."""
        devices, device = self._ports.devices, address.device
        if devices is None or devices.knows(device):
            return False
        return address.leaf != "state" or device not in self.state.devices

    def _said(self, device: str, topic: str, payload: bytes) -> bytes:
        """What a device says, once it is known to be its own. Raises NotTrusted, MessageError."""
        devices = self._ports.devices
        return devices.said(device, topic, payload) if devices else wire.said_in(payload)

    def _say_forged(self, device: str, what: str) -> None:
        """That a message was dropped, as another than the device may have sent it. It is not answered: by a
        refusal the device would drop its update. Said now and then; those of strangers together.
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

    def _taken(self, device: str, messages: float = 1.0) -> bool:
        """Whether a device has not sent too much of late, with this that counts as so many messages."""
        now = self._ports.clock()
        if self._flood.lets(device, now, messages):
            return True
        if self._flood.worth_saying(device, now):
            log.warning("messages from %s dropped: it sends more than %g a second", device, RATE)
        return False

    def _on_state(self, device: str, state: wire.State, retain: bool) -> None:
        """Presence that the broker kept is of a device that came before we did: we were away, it was not."""
        before = self.state.devices.get(device)
        self._wills.heard(device)
        is_will = not (state.online or state.leaving) and before and before.online
        if is_will and self._wills.holds(device, state, retain, self._ports.clock()):
            return
        self._on_presence(device, state, retain)

    def _on_presence(self, device: str, state: wire.State, retain: bool) -> None:
        before = self.state.devices.get(device)
        known = before is not None and before.boot == state.boot
        ready = before.ready if before and known else retain and self.state.round > 0
        ready = ready and not state.paused  # until it says hello
        self._run.feed(moves.DevicePresent(self._ports.clock(), device, state.boot, state.online, ready))
        self._run.attend(device)
        if self.state.devices.get(device) != before:
            self._tell(DeviceSeen(device, state.online))
        now = self.state.devices.get(device)
        if not state.online and not (now and now.online):
            self._run.out.clear_state(device)

    def _hear_wills(self) -> None:
        """Those of who is not back in time count."""
        for device, state in self._wills.due(self._ports.clock()):
            self._on_presence(device, state, retain=True)

    def _on_hello(self, device: str, hello: wire.Hello, signed: bool) -> None:
        """Answered with the round that is open (clocks are not compared: what remains is said now).

        Before the first one, and where the device is not asked, that is round 0, the lobby: fetch the
        bundle, measure, say hello again.
        """
        self._wills.heard(device)
        if hello.task not in ("", self._rounds.task.name):
            name, here = printable(hello.task), self._rounds.task.name
            log.warning("%s asks for task %s; here is %s", device, name, here)
            return
        self._run.out.agree(device, hello.key, signed)
        self._run.reception.heard(device, hello.num_examples)
        profile, engine = printable(hello.profile), printable(hello.engine)
        battery = hello.battery_percent if 0 <= hello.battery_percent <= 100 else None
        self._tell(DeviceSeen(device, True, profile, hello.num_examples, engine, hello.memory_bytes, battery))
        self._run.feed(
            moves.DevicePresent(self._ports.clock(), device, hello.boot, True, hello.num_examples > 0)
        )
        self._run.attend(device)
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
        self._run.feed(moves.Planned(self._ports.clock(), device, plan.round, plan.kind))

    def _remember(self, device: str, message: wire.Contribution, size: int) -> None:
        """What the next ones may be like: short ones have no number themselves."""
        self._whole.pop(device, None)
        if message.seq and message.body and size <= small.MOST_BYTES:
            self._whole[device] = small.without_numbers(message)

    def _on_short(self, device: str, payload: bytes) -> None:
        """Like the last whole one, which a device knows that we have; else it sends it whole, in a while."""
        like = self._whole.get(device)
        if like is None:
            return
        said, word = small.split_mac(payload)
        signs = self._ports.devices is not None and self._ports.devices.signs(device)
        if signs and not self._run.out.has_said(device, like.run, said, word):
            self._say_forged(device, f"a contribution in few bytes without the word of {device}")
            return
        self._on_contribution(device, small.long_of(said, like), None)

    def _on_contribution(self, device: str, message: wire.Contribution, refusal: str | None) -> None:
        key = device, message.round, message.kind, message.boot, message.seq
        update = moves.Update(*key, samples=message.num_examples, form=message.form)
        try:
            self._run.reception.check_address(message)
        except UpdateRefused as error:
            self._run.reply(moves.Reply(update, "refused", str(error)))
            return
        if device not in self.state.devices:
            self._run.feed(moves.DevicePresent(self._ports.clock(), device, message.boot, True))
            self._run.attend(device)
        self._run.reception.announce(update, message, refusal)

    def _tell(self, happening: Happening) -> None:
        for observer in self._ports.observers:
            try:
                observer(happening)
            except Exception as error:  # a view that fails must not stop the rounds
                log.warning("observer failed: %s: %s", type(error).__name__, error)
