"""What a device says, and through what: its topics, its presence, and of its plans what there is time for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link_events import Will
from device_runtime.broker.wire.link_timing import packet_bytes
from device_runtime.broker.wire.messages import (
    Contribution,
    Get,
    Hello,
    Message,
    Offer,
    Plan,
    State,
    encode,
)
from device_runtime.broker.wire.transfer import answer
from device_runtime.client.policy.work_gate import Hours

AND_MORE = "..."
"""In place of reasons that are left out."""


SIGNED = ("hello", "plan", "contribution")
"""Ends of topics whose messages a device with a key signs."""

Seal = Callable[[str, bytes], bytes]
"""The payload of an encoded message for a topic, signed."""
Word = Callable[[str, str, bytes], bytes]
"""That this device says a payload on a topic, in a run (see `broker.wire.session_mac`)."""


class DeviceLink(Protocol):
    """The part of `broker.wire.link.Link` that is used here."""

    @property
    def url(self) -> object:
        """Whom it is connected to, for people."""

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Send, now or when the link is back; never waits. False when too much waits already."""

    def under_way(self, topic: str = "") -> int:
        """Messages that the broker has not acknowledged yet: on this topic, or on any."""


class Voice:
    """One life (`boot`) of the device `name`; it can speak once it has a `link`."""

    def __init__(self, name: str, boot: int) -> None:
        self.boot = boot
        self.task = ""
        """The one that it is in, or asks for; empty: whichever there is."""
        self.key = b""
        """By which an aggregator may agree with it (see `broker.wire.session_mac`)."""
        self.link: DeviceLink
        self._name = name
        self._seal: Seal | None = None
        self._word: Word | None = None
        self._plan_said: tuple[str, tuple[str, ...]] | None = None

    def sign(self, seal: Seal, word: Word) -> None:
        """Sign hellos, plans and contributions from now on, and put a word on those in few bytes."""
        self._seal, self._word = seal, word

    def presence(self, online: bool, leaving: bool = False) -> Will:
        """What the link says for us: when it has the broker, and when we leave; and the broker when it has
        lost us.
        """
        return Will(self._topic("state"), encode(State(boot=self.boot, online=online, leaving=leaving)))

    def paused(self, yes: bool) -> None:
        """That no work may be done here for now, or that it may again."""
        self._publish("state", State(boot=self.boot, online=True, paused=yes), retain=True)

    def under_way(self, leaf: str = "") -> int:
        """Messages that have not yet reached the broker for sure."""
        return self.link.under_way(self._topic(leaf) if leaf else "")

    def hello(self, hello: Hello) -> None:
        """The one who hears it may not have heard the last plan."""
        self._plan_said = None
        self._publish("hello", msgspec.structs.replace(hello, task=self.task, key=self.key))

    def plan(self, plan: Plan, room_bytes: float) -> None:
        """Tell of a plan that is another than the last, before the update that it is for.

        That one must not be late for it: what does not fit into `room_bytes` of reasons is left out, and
        the plan where it does not fit at all. Where nothing is trained there is all the room.
        """
        said = (plan.kind, tuple(reason.split(" needs")[0] for reason in plan.reasons))
        if plan.kind and said == self._plan_said:
            return
        told: Plan | None = plan
        while plan.kind and told and self._bytes("plan", told) > room_bytes:
            told = _shorter(told)
        if told:
            self._publish("plan", told)
            self._plan_said = said

    def contribution(self, message: Contribution) -> None:
        self._publish("contribution", message)

    def short(self, payload: bytes, run: str) -> None:
        """A contribution in few bytes, of this run."""
        topic = self._topic("c")
        if self._word:
            payload = small.with_word(payload, self._word(topic, run, payload))
        self.link.publish(topic, payload)

    def ask(self, get: Get) -> None:
        self._publish("get", get)

    def blocks(self, blobs: Blobs, get: Get) -> None:
        """Answer with the blocks that are asked for; one that is still on its way is not sent twice."""
        for index, data in answer(blobs, get):
            topic = self._topic(topics.block(get.blob.sha, index))
            if not self.link.under_way(topic):
                self.link.publish(topic, data)

    def _publish(self, leaf: str, message: Message, retain: bool = False) -> None:
        self.link.publish(self._topic(leaf), self._payload(leaf, message), retain)

    def _payload(self, leaf: str, message: Message) -> bytes:
        """Presence is not signed, as the broker says a part of it; nor are requests for what all may know."""
        payload = encode(message)
        return self._seal(self._topic(leaf), payload) if self._seal and leaf in SIGNED else payload

    def _bytes(self, leaf: str, message: Message) -> int:
        """Of the packet."""
        return packet_bytes(self._topic(leaf), self._payload(leaf, message))

    def _topic(self, leaf: str) -> str:
        return topics.up(self._name, leaf)


def _shorter(plan: Plan) -> Plan | None:
    """With one reason less; None when there is none left."""
    reasons = tuple(reason for reason in plan.reasons if reason != AND_MORE)
    return msgspec.structs.replace(plan, reasons=(*reasons[:-1], AND_MORE)) if reasons else None


# FROM pause_notice: Telling the aggregator that this device may not work for now, so that no round waits
# for it.


class Standing:
    """What was told of `hours` by `voice`, and is not told twice."""

    def __init__(self, hours: Hours, voice: Voice) -> None:
        self._hours, self._voice = hours, voice
        self._paused = False
        self._sat_out = ("", 0)
        self._plan: tuple[Plan, float] | None = None

    def plan(self, plan: Plan, room_bytes: float) -> None:
        """What is tried now; it is told again when that goes on after a pause."""
        self._plan = (plan, room_bytes)
        self._voice.plan(plan, room_bytes)

    def pause(self, offer: Offer | None) -> None:
        """No work may be done; `offer` is of the round that is open and has no answer yet, if any."""
        if not self._paused:
            self._paused = True
            self._voice.paused(True)
        if offer is not None and offer.round > 0 and (offer.task, offer.round) != self._sat_out:
            self._sat_out = (offer.task, offer.round)
            nothing = Plan(
                task=offer.task,
                round=offer.round,
                kind="",
                seconds=0.0,
                memory_bytes=0,
                energy_j=0.0,
                reasons=(self._hours.reason,),
            )
            self._voice.plan(nothing, 0.0)

    def resume(self) -> bool:
        """Work may be done. Returns whether it could not be until now: say hello, for nobody waits for us."""
        if not self._paused:
            return False
        self._paused = False
        self._voice.paused(False)
        return True

    def greeted(self) -> None:
        """A hello says that the device is ready: where it is not, that is said after it.

        Whoever was told that the device sits a round out is told what it does after all.
        """
        if self._paused:
            self._voice.paused(True)
            return
        if self._plan and (self._plan[0].task, self._plan[0].round) == self._sat_out:
            self._voice.plan(*self._plan)
        self._sat_out = ("", 0)
