"""Sends a device's messages on its topics, its presence and pauses included."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from device_runtime.broker.wire import compact_round, topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link_events import Will, packet_bytes
from device_runtime.broker.wire.messages import (
    RELEASE,
    Contribution,
    Get,
    Hello,
    Message,
    Plan,
    State,
    encode,
)
from device_runtime.broker.wire.transfer import SendingLink, send_blocks

AND_MORE = "..."
"""Stands for reasons that are left out."""


Seal = Callable[[str, bytes], bytes]
"""Signs an encoded message for a topic; returns the payload."""
Mac = Callable[[str, str, bytes], bytes]
"""The MAC of a payload on a topic in a run (see `broker.security.signing`)."""


class DeviceMessages:
    """Sends the messages of the device `name`, once it has a `link`.

    `boot` tells one start of its process from another. `tags` go with every hello.
    """

    def __init__(self, name: str, boot: int, tags: tuple[str, ...] = ()) -> None:
        self.boot = boot
        self.task = ""
        """The task that it is in, or asks for; empty: any."""
        self.key = b""
        """Public key for a session key with the aggregator (see `broker.security.signing`)."""
        self.link: SendingLink
        self._name, self._tags = name, tags
        self._seal: Seal | None = None
        self._mac: Mac | None = None
        self._sent_plan: tuple[str, tuple[str, ...]] | None = None

    def sign(self, seal: Seal, mac: Mac) -> None:
        """From now on sign hellos, plans and contributions, and add a MAC to compact contributions."""
        self._seal, self._mac = seal, mac

    def presence(self, online: bool, leaving: bool = False) -> Will:
        """The presence message of this device.

        The link sends it at each connection and on leaving; the broker sends it when it has lost the device.
        """
        return Will(self._topic("state"), encode(State(boot=self.boot, online=online, leaving=leaving)))

    def paused(self, yes: bool) -> None:
        """Tell that this device is paused, or that it may work again."""
        self._publish("state", State(boot=self.boot, online=True, paused=yes), retain=True)

    def unacknowledged(self, leaf: str = "") -> int:
        """Number of messages that the broker has not acknowledged yet."""
        return self.link.unacknowledged(self._topic(leaf) if leaf else "")

    def hello(self, hello: Hello) -> None:
        """Send a hello, and forget the last plan: whoever hears the hello may not have heard that."""
        self._sent_plan = None
        about = {"task": self.task, "key": self.key, "tags": self._tags, "version": RELEASE}
        self._publish("hello", msgspec.structs.replace(hello, **about))

    def plan(self, plan: Plan, room_bytes: float) -> None:
        """Send a plan that differs from the last, before the update that it is for.

        The plan must not make the update late: reasons that do not fit into `room_bytes` are left out, and
        the whole plan if it does not fit at all. A plan to train nothing is not limited.
        """
        content = (plan.kind, tuple(reason.split(" needs")[0] for reason in plan.reasons))
        if plan.kind and content == self._sent_plan:
            return
        shortened: Plan | None = plan
        while plan.kind and shortened and self._bytes("plan", shortened) > room_bytes:
            shortened = _shorter(shortened)
        if shortened:
            self._publish("plan", shortened)
            self._sent_plan = content

    def contribution(self, message: Contribution) -> None:
        self._publish("contribution", message)

    def short(self, payload: bytes, run: str) -> None:
        """Send a compact contribution to this run."""
        topic = self._topic("c")
        if self._mac:
            payload = compact_round.with_mac(payload, self._mac(topic, run, payload))
        self.link.publish(topic, payload)

    def ask(self, get: Get) -> None:
        self._publish("get", get)

    def blocks(self, blobs: Blobs, get: Get) -> None:
        """Send the blocks that are asked for."""
        send_blocks(self.link, self._name, blobs, get)

    def _publish(self, leaf: str, message: Message, retain: bool = False) -> None:
        self.link.publish(self._topic(leaf), self._payload(leaf, message), retain)

    def _payload(self, leaf: str, message: Message) -> bytes:
        """Presence is not signed, as the broker sends a part of it; nor are requests for public data."""
        payload = encode(message)
        return self._seal(self._topic(leaf), payload) if self._seal and leaf in topics.SIGNED else payload

    def _bytes(self, leaf: str, message: Message) -> int:
        """Size of the packet."""
        return packet_bytes(self._topic(leaf), self._payload(leaf, message))

    def _topic(self, leaf: str) -> str:
        return topics.up(self._name, leaf)


def _shorter(plan: Plan) -> Plan | None:
    """The plan with one reason less; None if it has none."""
    reasons = tuple(reason for reason in plan.reasons if reason != AND_MORE)
    return msgspec.structs.replace(plan, reasons=(*reasons[:-1], AND_MORE)) if reasons else None
