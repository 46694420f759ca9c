"""Runs one real device agent on a virtual clock, through crashes, restarts and lost links."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from device_runtime.broker.wire.link_events import Event
from device_runtime.device.agent.agent import Agent
from device_runtime.device.backend.in_process import InProcess
from device_runtime.device.training.settings import Settings
from device_runtime.profiles import DeviceProfile
from device_runtime.profiles.device import Emulation, Time
from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue
from tests.simulation.wire.broker import PacketLog, VirtualBroker
from tests.simulation.wire.link import ClientEnd, ClientIdentity, LinkCapacity, VirtualLink

POLL_S = 0.5
"""Virtual seconds between two steps of a device that waits for something."""
BOOTS = 1
"""Purpose of the random draws that name a device's boots."""
SECRETS = 2
"""Purpose of the random draws of a device's masks."""


class PowerLost(Exception):
    """The device lost its power while it computed."""


class DeviceTime:
    """A device's clock: the agenda's time, plus within a step the seconds that the device has computed."""

    def __init__(self, agenda: VirtualTimeQueue) -> None:
        self.dies_s = inf
        self._agenda = agenda
        self._ahead_s = 0.0

    def clock(self) -> float:
        return self._agenda.now + self._ahead_s

    def sleep(self, seconds: float) -> None:
        """Advances the clock. Raises PowerLost if the device loses power before then."""
        self._ahead_s += seconds
        if self.clock() > self.dies_s:
            raise PowerLost

    @contextmanager
    def step(self) -> Iterator[None]:
        """Lets computing advance the clock; afterwards the clock is the agenda's again."""
        try:
            yield
        finally:
            self._ahead_s = 0.0


@dataclass(frozen=True)
class PlacedDevice:
    """A device with its samples (an .npz as `join --data` takes), its folder and its link to the broker.

    `number`, with the run's `seed`, seeds its draws.
    """

    name: str
    number: int
    profile: DeviceProfile
    data: Path
    folder: Path
    line: LinkCapacity


class VirtualDevice:
    """A device that runs by the broker's agenda; `crash`, `lose` and others inject faults."""

    def __init__(self, placed: PlacedDevice, broker: VirtualBroker, log: PacketLog, seed: int) -> None:
        self.placed = placed
        self.finished = False
        self.link: VirtualLink | None = None
        self._broker, self._agenda, self._log, self._seed = broker, broker.agenda, log, seed
        self._time = DeviceTime(broker.agenda)
        self._agent: Agent | None = None
        self._lives = 0
        self._busy_s = 0.0
        self._polls = self._off = False
        self._deaths: list[float] = []

    def start(self) -> None:
        """Starts the device's process, or starts it again on the same folder."""
        self._time.dies_s = min((at_s for at_s in self._deaths if at_s > self._agenda.now), default=inf)
        placed = self.placed
        placed.folder.mkdir(parents=True, exist_ok=True)
        self._lives += 1
        boot, secrets = (
            np.random.default_rng([self._seed, purpose, placed.number, self._lives])
            for purpose in (BOOTS, SECRETS)
        )
        emulation = Emulation(placed.profile, time=Time(self._time.clock, self._time.sleep))
        settings = Settings(placed.name, placed.data, placed.folder, emulation)
        make = partial(InProcess, draw=secrets.bytes)
        agent = Agent(settings, int(boot.integers(2**32)), self._time.clock, make)
        who = ClientIdentity(placed.name, agent.subscriptions(), agent.will(), agent.greeting())
        ends = ClientEnd(self._hear, self._time.clock)
        self.link = VirtualLink(who, placed.line, self._broker, ends, self._log)
        agent.begin(self.link)
        self._agent = agent
        if not self._off:
            self.link.connect()

    def dies_at(self, at_s: float) -> None:
        """Announces a crash, before `start`: a long step is computed at once, and must know that it fails."""
        self._deaths.append(at_s)

    def crash(self) -> None:
        """Takes the device's power: what is not on its disk is lost."""
        self._agent = None
        self._busy_s = 0.0
        if self.link:
            self.link.cut()

    def lose(self) -> None:
        """Takes the device off the network."""
        self._off = True
        if self.link:
            self.link.lose()

    def regain(self) -> None:
        """Puts the device back on the network."""
        self._off = False
        if self.link and self._agent:
            self.link.connect()

    def _hear(self, event: Event) -> None:
        if self._agent:
            self._agent.inbox.put(event)
            self._go_on()

    def _go_on(self) -> None:
        """Steps the agent until it has nothing to do now, or is busy computing."""
        if self._agent is None or self._agenda.now < self._busy_s:
            return
        try:
            while self._step(self._agent):
                pass
        except PowerLost:
            self._agent = None
            return
        if self._agenda.now < self._busy_s:
            self._agenda.at(self._busy_s, self._go_on)
        elif self._agent.finished:
            self._leave(self._agent)
        elif self._agent.waiting and not self._polls:
            self._polls = True
            self._agenda.at(self._agenda.now + POLL_S, self._poll)

    def _step(self, agent: Agent) -> bool:
        """Steps the agent once; returns whether to step again at this moment."""
        with self._time.step():
            came = agent.step()
            self._busy_s = self._time.clock()
        return came and self._busy_s <= self._agenda.now

    def _poll(self) -> None:
        self._polls = False
        self._go_on()

    def _leave(self, agent: Agent) -> None:
        self._agent, self.finished = None, True
        if self.link:
            self.link.close(agent.farewell())
