"""Bytes of each device in the open round, exactly as MQTT PUBLISH packets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from device_runtime.aggregator.intake.contributions import Bytes
from device_runtime.broker.wire.link import packet_bytes


class Traffic:
    """Counts until the next round begins. What reaches nobody, or a device not heard of, is not counted."""

    def __init__(self, mqtt5: bool = False) -> None:
        self._mqtt5 = mqtt5
        self._moved: dict[str, Bytes] = {}

    def begin(self, moved: Mapping[str, Bytes]) -> None:
        """A new round, or one that goes on with these figures after a restart."""
        self._moved = dict(moved)

    def up(self, device: str, topic: str, payload: bytes) -> None:
        self._add(device, Bytes(up=packet_bytes(topic, payload, mqtt5=self._mqtt5)))

    def down(self, devices: Iterable[str], topic: str, payload: bytes) -> None:
        """One message to each of these."""
        size = packet_bytes(topic, payload, mqtt5=self._mqtt5)
        for device in devices:
            self._add(device, Bytes(down=size))

    def forget(self, device: str) -> None:
        """A device that is not known any longer."""
        self._moved.pop(device, None)

    def of(self, device: str) -> Bytes:
        return self._moved.get(device, Bytes())

    def all(self) -> dict[str, Bytes]:
        """A copy of every device's figures."""
        return dict(self._moved)

    def _add(self, device: str, more: Bytes) -> None:
        now = self.of(device)
        self._moved[device] = Bytes(now.up + more.up, now.down + more.down)
