"""Tells the round machine which devices come and go."""

from __future__ import annotations

from device_runtime.aggregator.delivery.last_will import HeldWills
from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.views.listener import DeviceSeen
from device_runtime.broker.wire.messages import State

from .events import DevicePresent
from .ports import Ports
from .runner import RoundRunner


class DevicePresence:
    """The presence of devices. Their last wills are held back for a while, as a device may return."""

    def __init__(self, runner: RoundRunner, out: Outbound, ports: Ports) -> None:
        self._runner, self._out, self._ports = runner, out, ports
        self.wills = HeldWills(ports.will_grace_s)

    def heard(self, device: str, state: State, retain: bool) -> None:
        """Takes a device's presence message."""
        before = self._runner.state.devices.get(device)
        self.wills.heard(device)
        is_will = not (state.online or state.leaving) and before and before.online
        if is_will and self.wills.holds(device, state, retain, self._ports.clock()):
            return
        self._apply(device, state, retain)

    def here(self, device: str, boot: int, ready: bool = True) -> None:
        """Feeds the machine that a device is online. `ready`: as in DevicePresent."""
        self._runner.feed(DevicePresent(self._ports.clock(), device, boot, True, ready))

    def apply_wills(self) -> None:
        """Applies the last wills of devices that did not come back in time."""
        for device, state in self.wills.due(self._ports.clock()):
            self._apply(device, state, retain=True)

    def _apply(self, device: str, state: State, retain: bool) -> None:
        """Feeds a device's presence to the machine.

        A retained message is of a device that was here before the aggregator started; it may be ready.
        """
        runner = self._runner
        before = runner.state.devices.get(device)
        known = before is not None and before.boot == state.boot
        ready = before.ready if before and known else retain and runner.state.round > 0
        ready = ready and not state.paused  # until it says hello
        runner.feed(DevicePresent(self._ports.clock(), device, state.boot, state.online, ready))
        now = runner.state.devices.get(device)
        if now != before:
            self._ports.tell(DeviceSeen(device, state.online))
        if not state.online and not (now and now.online):
            self._out.clear_state(device)
