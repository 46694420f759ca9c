"""One virtual device: a real agent in each of its lives, on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from device_runtime.broker.wire.link_events import Event
from device_runtime.client.agent import Agent
from device_runtime.client.settings import Settings
from device_runtime.client.training.emulation import Pretence, Time
from device_runtime.profiles import DeviceProfile
from device_runtime.simulation.clock.director import Agenda

from .broker import Broker, Log
from .link import Ends, LinkCapacity, VirtualLink, Who

POLL_S = 0.5
"""Virtual seconds between looks at what is due on a device that waits for something."""
BOOTS = 1
"""Purpose of the draws that name the lives of a device."""


class Died(Exception):
    """The device lost its power while it computed."""


class DeviceTime:
    """The agenda's time between steps; within one, ahead of it by what the device has computed."""

    def __init__(self, agenda: Agenda) -> None:
        self.dies_s = inf
        self._agenda = agenda
        self._ahead_s = 0.0

    def clock(self) -> float:
        return self._agenda.now + self._ahead_s

    def sleep(self, seconds: float) -> None:
        """Raises Died when the device does not live so long."""
        self._ahead_s += seconds
        if self.clock() > self.dies_s:
            raise Died

    @contextmanager
    def step(self) -> Iterator[None]:
        """What is done in here takes time; afterwards it is the agenda's again."""
        try:
            yield
        finally:
            self._ahead_s = 0.0


@dataclass(frozen=True)
class PlacedDevice:
    """A device where it is: its samples (an .npz as `join --data` takes), its folder, its way to the broker.

    `number` and the run's `seed` make its draws its own.
    """

    name: str
    number: int
    profile: DeviceProfile
    data: Path
    folder: Path
    line: LinkCapacity


class VirtualDevice:
    """See `start`, `crash`, `lose`; otherwise it goes by itself, by the broker's agenda."""

    def __init__(self, placed: PlacedDevice, broker: Broker, log: Log, seed: int) -> None:
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
        """A (new) life of the process, on the folder of the ones before."""
        self._time.dies_s = min((at_s for at_s in self._deaths if at_s > self._agenda.now), default=inf)
        placed = self.placed
        placed.folder.mkdir(parents=True, exist_ok=True)
        self._lives += 1
        boot = np.random.default_rng([self._seed, BOOTS, placed.number, self._lives]).integers(2**32)
        pretence = Pretence(placed.profile, time=Time(self._time.clock, self._time.sleep))
        settings = Settings(placed.name, placed.data, placed.folder, pretence)
        agent = Agent(settings, int(boot), self._time.clock)
        who = Who(placed.name, agent.subscriptions(), agent.will(), agent.greeting())
        ends = Ends(self._heard, self._time.clock)
        self.link = VirtualLink(who, placed.line, self._broker, ends, self._log)
        agent.begin(self.link)
        self._agent = agent
        if not self._off:
            self.link.connect()

    def dies_at(self, at_s: float) -> None:
        """Known before `start`, because a step is done at once that ends only later."""
        self._deaths.append(at_s)

    def crash(self) -> None:
        """No power: what is not on its disk is lost."""
        self._agent = None
        self._busy_s = 0.0
        if self.link:
            self.link.cut()

    def lose(self) -> None:
        """No network."""
        self._off = True
        if self.link:
            self.link.lose()

    def regain(self) -> None:
        """The network is back."""
        self._off = False
        if self.link and self._agent:
            self.link.connect()

    def _heard(self, event: Event) -> None:
        if self._agent:
            self._agent.inbox.put(event)
            self._go_on()

    def _go_on(self) -> None:
        """Step until there is nothing to do now, or the device is busy computing."""
        if self._agent is None or self._agenda.now < self._busy_s:
            return
        try:
            while self._step(self._agent):
                pass
        except Died:
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
        """Whether to step again at this moment."""
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
