"""Decides which messages of devices are heard."""

from __future__ import annotations

import logging
from collections.abc import Callable

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.aggregator.rounds.runner import RoundRunner
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.security.signing import NotTrusted
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link_events import Received

from .limits import RATE, KnownDevices, RateLimit, message_cost

log = logging.getLogger(__name__)

SIGNED = ("hello", "plan", "contribution")
"""Messages that devices with a key sign."""


class Admission:
    """Admits messages of enrolled and known devices, within their rate, and signed where they have a key."""

    def __init__(
        self, runner: RoundRunner, out: Outbound, ports: Ports, forget: Callable[[str], None]
    ) -> None:
        """`forget` is called with a device that gives its place to a new one."""
        self._runner, self._out, self._ports = runner, out, ports
        self._flood, self._forged = RateLimit(), RateLimit()
        self.crowd = KnownDevices(self._is_away, forget, ports.max_devices)

    def admitted(self, event: Received, address: topics.Address) -> bytes | None:
        """The payload of a message, without its signature; None if it is dropped. Raises MessageError."""
        device, leaf, payload = address.device, address.leaf, event.payload
        if self._is_stranger(address):
            self.say_forged("", f"{leaf} of {device}, who is not enrolled")
            if payload and event.retain:
                self._out.clear(event.topic)
            return None
        if not self.crowd.lets_in(device):
            return None
        if event.retain and leaf != "state":
            log.warning("message from %s dropped: only presence may be retained, not %s", device, leaf)
            self._out.clear(event.topic)
            return None
        if payload and not event.retain:
            self._out.traffic.up(device, event.topic, payload)
        if leaf != "block" and not self.within_rate(device, message_cost(leaf, len(payload))):
            return None
        if leaf not in SIGNED:
            return payload
        devices = self._ports.devices
        if devices is None:
            return messages.device_message_in(payload)
        try:
            return devices.verified_payload(device, event.topic, payload)
        except NotTrusted as error:
            self.say_forged(device, str(error))
            return None

    def within_rate(self, device: str, count: float = 1.0) -> bool:
        """Whether a device stays within its rate limit with one more message, which counts as `count`."""
        now = self._ports.clock()
        if self._flood.lets(device, now, count):
            return True
        if self._flood.worth_saying(device, now):
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
        known = self._runner.state.devices.get(device)
        return known is None or not known.online
