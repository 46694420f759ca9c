"""Checks the messages of devices and turns them into events of the round state machine.

Last wills are held until it is clear that the device is gone, and not the broker. A broker that stops
publishes the last wills of all its clients. A will that comes while the broker is connected therefore
counts only after a grace period, and only if no message of the device came in it. If the broker is lost
within the grace period, or if the will is one that it retained, devices get the time that they need to
connect again. A device that announces that it leaves is gone at once, and has no will.

There is no clock here: times are in seconds, and given by the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import DatabaseError, RunFolderError, UpdateRefused
from device_runtime.aggregator.intake.check import CheckedMessage
from device_runtime.aggregator.limits import RATE, KnownDevices, RateLimit, message_cost
from device_runtime.aggregator.machine.events import ContributionId, DevicePresent, Forgotten, Planned, Reply
from device_runtime.aggregator.machine.ports import GRACE_S, Ports
from device_runtime.aggregator.machine.run_events import DeviceSeen, PlanReported
from device_runtime.aggregator.storage.store import SavedSession
from device_runtime.aggregator.tasks.participants import DeviceTraits
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.signing import NotTrusted
from device_runtime.broker.wire import compact_round, link, topics
from device_runtime.broker.wire import messages as wire
from device_runtime.broker.wire.messages import State
from device_runtime.broker.wire.sum_messages import HelperState, SumAnswer

from .run import OpenRun
from .runner import RoundRunner

log = logging.getLogger(__name__)

RETURN_S = 30.0
"""Seconds that devices get to connect to a broker that is back: their longest wait between two attempts."""


class HeldWills:
    """The wills that are held back, by device."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._wills: dict[str, tuple[State, float]] = {}
        self._back_at = -inf

    def holds(self, device: str, will: State, retain: bool, now: float) -> bool:
        """Whether the will is held back. `retain`: the broker retained it from before we connected."""
        until = self._back_at if retain else now + self._grace_s
        if until > now:
            self._wills[device] = will, until
        return until > now

    def heard(self, device: str) -> None:
        """Drop the will of a device that sent a message, or that announced that it leaves."""
        self._wills.pop(device, None)

    def broker_lost(self) -> None:
        """Hold the wills of the grace period until the broker is back: the broker itself caused them."""
        self._wills = {device: (will, inf) for device, (will, _) in self._wills.items()}

    def broker_back(self, now: float) -> None:
        """Give devices RETURN_S to connect again."""
        self._back_at = now + RETURN_S
        wills = self._wills.items()
        self._wills = {device: (will, min(until, self._back_at)) for device, (will, until) in wills}

    def due(self, now: float) -> list[tuple[str, State]]:
        """Remove and return the wills that count now, with their devices."""
        wills = [(device, will) for device, (will, until) in self._wills.items() if now >= until]
        for device, _ in wills:
            del self._wills[device]
        return wills


HELLO_BURST, HELLO_RATE = 60.0, 1.0
"""Hellos of a device at once, and each second after that: each is answered by an offer."""
FETCHED_S = 10.0
"""Seconds that a finished service stays after a device has asked for a part of the model."""
MOST_REASONS = 64
"""The most reasons of a plan that are kept; a device sends one for each form that it does not choose."""


class Admission:
    """Admits messages of enrolled and known devices, within their rate, and signed where they have a key."""

    def __init__(
        self,
        runner: RoundRunner,
        out: Outbound,
        ports: Ports,
        forget: Callable[[str], None],
        helpers: frozenset[str] = frozenset(),
    ) -> None:
        """`forget` is called with a device that gives its place to a new one; `helpers` take no place."""
        self._runner, self._out, self._ports, self._helpers = runner, out, ports, helpers
        self._rate_limit, self._forged = RateLimit(), RateLimit()
        self._hellos = RateLimit(HELLO_BURST, HELLO_RATE, ports.max_devices)
        self.known_devices = KnownDevices(self._is_away, forget, ports.max_devices)

    def admitted(self, event: link.Received, address: topics.Address) -> bytes | None:
        """The payload of a message, without its signature; None if it is dropped. Raises MessageError."""
        device, leaf, payload = address.device, address.leaf, event.payload
        if self._is_stranger(address):
            self.say_forged("", f"{leaf} of {device}, who is not enrolled")
            if payload and event.retain:
                self._out.clear(event.topic)
            return None
        if device not in self._helpers and not self.known_devices.lets_in(device):
            return None
        if event.retain and leaf != "state":
            log.warning("message from %s dropped: only presence may be retained, not %s", device, leaf)
            self._out.clear(event.topic)
            return None
        if payload and not event.retain:
            self._out.traffic.up(device, event.topic, payload)
        if leaf != "block" and not self.within_rate(device, message_cost(leaf, len(payload))):
            return None
        if leaf == "hello" and not self._hellos.lets(device, self._ports.clock()):
            if self._hellos.worth_saying(device, self._ports.clock()):
                log.warning("hellos of %s dropped: it sends more than %g a second", device, HELLO_RATE)
            return None
        if leaf not in topics.SIGNED:
            return payload
        devices = self._ports.devices
        if devices is None:
            return wire.device_message_in(payload)
        try:
            return devices.verified_payload(device, event.topic, payload)
        except NotTrusted as error:
            self.say_forged(device, str(error))
            return None

    def within_rate(self, device: str, count: float = 1.0) -> bool:
        """Whether a device stays within its rate limit with one more message, which counts as `count`."""
        now = self._ports.clock()
        if self._rate_limit.lets(device, now, count):
            return True
        if self._rate_limit.worth_saying(device, now):
            log.warning("messages from %s dropped: it sends more than %g a second", device, RATE)
        return False

    def say_forged(self, device: str, what: str) -> None:
        """Logs that a message was dropped because another than the device may have sent it.

        It gets no answer: a refusal would make the real device drop its update. The number of log lines is
        limited; messages of strangers share one limit.
        """
        if self._forged.worth_saying(device, self._ports.clock()):
            log.warning("dropped, perhaps forged: %s", printable(what))

    def _is_stranger(self, address: topics.Address) -> bool:
        """Whether a device is not enrolled, though devices have to be.

        The presence of a known device still counts: one that was revoked may go offline.
        """
        devices, device = self._ports.devices, address.device
        if devices is None or devices.knows(device):
            return False
        return address.leaf != "state" or device not in self._runner.state.devices

    def _is_away(self, device: str) -> bool:
        presence = self._runner.state.devices.get(device)
        return presence is None or not presence.online


class DevicePresence:
    """The presence of devices. Their last wills are held back for a while, as a device may return.

    `selects`: the task leaves out devices by what their hellos say; one is not ready before its hello.
    """

    def __init__(
        self, runner: RoundRunner, session: SavedSession, out: Outbound, ports: Ports, selects: bool
    ) -> None:
        self._runner, self._session, self._out, self._ports = runner, session, out, ports
        self.selects = selects
        self.wills = HeldWills(ports.will_grace_s)

    def feed(self, event: DevicePresent | Forgotten) -> None:
        """Feeds an event to the machine, and has it stored for a restart."""
        self._session.note(event)
        self._runner.feed(event)

    def heard(self, device: str, state: wire.State, retain: bool) -> None:
        """Takes a device's presence message."""
        before = self._runner.state.devices.get(device)
        self.wills.heard(device)
        is_will = not (state.online or state.leaving) and before and before.online
        if is_will and self.wills.holds(device, state, retain, self._ports.clock()):
            return
        self._apply(device, state, retain)

    def apply_wills(self) -> None:
        """Applies the last wills of devices that did not come back in time."""
        for device, state in self.wills.due(self._ports.clock()):
            self._apply(device, state, retain=True)

    def _apply(self, device: str, state: wire.State, retain: bool) -> None:
        """Feeds a device's presence to the machine.

        A retained message is of a device that was here before the aggregator started; it may be ready.
        """
        runner = self._runner
        before = runner.state.devices.get(device)
        same_boot = before is not None and before.boot == state.boot
        known_before = retain and runner.state.round > 0 and not self.selects
        ready = before.ready if before and same_boot else known_before
        ready = ready and not state.paused  # until it says hello
        self.feed(DevicePresent(self._ports.clock(), device, state.boot, state.online, ready))
        now = runner.state.devices.get(device)
        if now != before:
            self._ports.tell(DeviceSeen(device, state.online))
        if not state.online and not (now and now.online):
            self._out.clear_state(device)


class DeviceMessageHandler:
    """Hears the messages of the devices of one run. Raises RunFolderError, DatabaseError."""

    def __init__(self, rounds: OpenRun, runner: RoundRunner, out: Outbound, ports: Ports) -> None:
        self._rounds, self._runner, self._out, self._ports = rounds, runner, out, ports
        self._contributions = runner.contributions
        masks = rounds.task.masks
        self._helpers = frozenset(helper.name for helper in masks.keys) if masks else frozenset[str]()
        self.presence = DevicePresence(
            runner, rounds.store.session, out, ports, bool(rounds.task.participants)
        )
        self.admission = Admission(runner, out, ports, self.forget, self._helpers)
        self._left_out: dict[str, str] = {}
        """Why devices that have said hello take no part."""
        self.needed_until_s = 0.0
        """Until when devices that fetch the model need the service."""

    def hear(self, event: link.Received) -> None:
        """Hears one message. Nothing that a device sends raises: whatever it is, others must be served."""
        try:
            self._hear(event)
        except (RunFolderError, DatabaseError):
            raise
        except Exception as error:
            kind = "" if isinstance(error, BrokerError) else f"{type(error).__name__}: "
            where, why = printable(event.topic), printable(str(error))
            log.warning("message on %s dropped: %s%s", where, kind, why)

    def forget(self, device: str) -> None:
        """Forgets a device that is away."""
        self.presence.wills.heard(device)
        self._left_out.pop(device, None)
        self._contributions.statements.forget(device)
        self._out.forget(device)
        self.presence.feed(Forgotten(self._ports.clock(), device))

    def _hear(self, event: link.Received) -> None:
        address = topics.parse(event.topic)
        payload = self.admission.admitted(event, address)
        if payload is None:
            return
        device = address.device
        if device in self._helpers:
            self._hear_helper(address, payload)
            return
        match address.leaf:
            case "state":
                if payload:  # else it is cleared, by us
                    self.presence.heard(device, wire.decode(payload, wire.State), event.retain)
            case "hello":
                self._on_hello(device, wire.decode(payload, wire.Hello), wire.is_from_device(event.payload))
            case "plan":
                self._on_plan(device, wire.decode(payload, wire.Plan))
            case "contribution":
                refusal = event.refusal if isinstance(event, CheckedMessage) else None
                message = wire.decode(payload, wire.Contribution)
                self._contributions.statements.contributed(device, message, len(payload))
                self._on_contribution(device, message, refusal)
            case "c":
                self._on_compact(device, payload)
            case "get":
                self.needed_until_s = max(self.needed_until_s, self._ports.clock() + FETCHED_S)
                self._out.blocks(device, wire.decode(payload, wire.Get), self._rounds.store.models)
            case "block":
                if not self._contributions.reception.block(device, address.sha, (address.index, payload)):
                    self.admission.within_rate(device)  # blocks that are asked for are free
            case "trial":
                pass  # `doctor` looks whether a device may write
            case "sum":
                log.warning("answer of %s dropped: it is no mask helper of this task", device)
            case leaf:
                log.warning("message from %s dropped: no topic ends in %s", device, printable(leaf))

    def _hear_helper(self, address: topics.Address, payload: bytes) -> None:
        """Hears a mask helper, which is no device: no round waits for it, and it contributes nothing."""
        helper, sums = address.device, self._runner.commands.sums
        match address.leaf:
            case "state":
                state = wire.decode(payload, HelperState) if payload else None
                if state is not None and state.online:
                    sums.came(helper, state.checks)
                elif state is not None and state.leaving:
                    self._out.clear_state(helper)
            case "sum":
                self._runner.sums_changed(sums.answered(helper, wire.decode(payload, SumAnswer)))
            case "get":
                sums.blocks(helper, wire.decode(payload, wire.Get))
            case "block":
                if not sums.block(helper, address.sha, (address.index, payload)):
                    self.admission.within_rate(helper)
            case "trial":
                pass
            case leaf:
                log.warning("message from mask helper %s dropped: it sends %s", helper, printable(leaf))

    def _on_hello(self, device: str, hello: wire.Hello, signed: bool) -> None:
        """Answers a hello with the open round and the seconds that remain of it (clocks are not compared).

        Before round 1, and for a device that is not asked, the answer is the offer of round 0 (the lobby):
        the device fetches the bundle, measures, and says hello again.
        """
        self.presence.wills.heard(device)
        if hello.task not in ("", self._rounds.task.name):
            name, here = printable(hello.task), self._rounds.task.name
            log.warning("%s asks for task %s; this aggregator has task %s", device, name, here)
            return
        self._out.agree(device, hello.key, signed)
        self._contributions.statements.greeted(device, hello.num_examples)
        profile, engine = printable(hello.profile), printable(hello.engine)
        battery = hello.battery_percent if 0 <= hello.battery_percent <= 100 else None
        event = DeviceSeen(device, True, profile, hello.num_examples, engine, hello.memory_bytes, battery)
        tags, version = tuple(map(printable, hello.tags)), printable(hello.version)
        self._ports.tell(replace(event, tags=tags, version=version))
        ready = hello.num_examples > 0 and self._takes_part(device, hello)
        self.presence.feed(DevicePresent(self._ports.clock(), device, hello.boot, True, ready))
        self._runner.commands.offering.one(self._runner.state, device)

    def _takes_part(self, device: str, hello: wire.Hello) -> bool:
        """Whether the task trains on a device; logs why not, when that is new."""
        traits = DeviceTraits(
            name=device,
            tags=tuple(map(printable, hello.tags)),
            profile=printable(hello.profile),
            engine=printable(hello.engine),
            version=printable(hello.version),
            memory_bytes=hello.memory_bytes,
            samples=hello.num_examples,
        )
        self._contributions.statements.traits[device] = traits
        why = self._rounds.task.participants.reason_left_out(traits)
        if why != self._left_out.get(device, ""):
            log.info("%s takes no part: %s", device, why) if why else log.info("%s takes part", device)
        self._left_out[device] = why
        return not why

    def _on_plan(self, device: str, plan: wire.Plan) -> None:
        if plan.task != self._rounds.task.name:
            return
        kind, reasons = printable(plan.kind), tuple(map(printable, plan.reasons[:MOST_REASONS]))
        self._contributions.statements.plans[device] = (kind, printable("; ".join(reasons)))
        figures = plan.seconds, plan.memory_bytes, plan.energy_j
        self._ports.tell(PlanReported(device, plan.round, kind, *figures, reasons))
        self._runner.feed(Planned(self._ports.clock(), device, plan.round, plan.kind))

    def _on_compact(self, device: str, payload: bytes) -> None:
        """Completes a compact contribution from the device's last full one.

        Without that one it is ignored: the device sends it again in full after a while.
        """
        like = self._contributions.statements.whole.get(device)
        if like is None:
            return
        content, mac = compact_round.split_mac(payload)
        signs = self._ports.devices is not None and self._ports.devices.signs(device)
        if signs and not self._out.is_authentic(device, like.run, content, mac):
            self.admission.say_forged(device, f"a contribution in few bytes without the MAC of {device}")
            return
        self._on_contribution(device, compact_round.full_contribution(content, like), None)

    def _on_contribution(self, device: str, message: wire.Contribution, refusal: str | None) -> None:
        key = device, message.round, message.kind, message.boot, message.seq
        update = ContributionId(*key, samples=message.num_examples, form=message.form)
        runner, reception = self._runner, self._contributions.reception
        try:
            reception.check_address(message)
        except UpdateRefused as error:
            self._contributions.give(Reply(update, "refused", str(error)), runner.state)
            return
        if device not in runner.state.devices:
            ready = not self.presence.selects
            self.presence.feed(DevicePresent(self._ports.clock(), device, message.boot, True, ready))
        runner.feed(reception.announced(update, message, refusal))
