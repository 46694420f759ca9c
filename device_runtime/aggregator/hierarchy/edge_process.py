"""An edge at work: a device above, an aggregator below, in one loop and one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.client.agent import Agent
from device_runtime.client.backend.in_process import InProcess
from device_runtime.client.connection.presence import DeviceLink
from device_runtime.client.settings import Settings

from .site_manager import Ground, SiteRules
from .site_task import SiteTask

TICK_S = 0.05
"""Seconds between looks at the clock."""
MOST_EVENTS = 100
"""Events from above that are taken before it is the site's turn again."""
HELLO_S = 10.0
"""Seconds after which the aggregator above is told of another number of samples."""
LINGER_S = 2.0
"""Seconds that devices of the site have to hear that all is over."""


class Edge:
    """Upwards an ordinary device: make its link as that of `agent`. `ports` are of the site."""

    def __init__(self, settings: Settings, boot: int, rules: SiteRules, ports: Ports) -> None:
        """`settings.data` is not read. `boot` as of Agent."""
        self._clock: Callable[[], float] = ports.clock
        self._rules = rules
        self.ground = Ground(settings.folder / "site", rules, ports)
        self.agent = Agent(
            settings, boot, ports.clock, partial(InProcess, make=partial(SiteTask, self.ground))
        )
        self._said, self._said_s = 0, 0.0
        self._over_s: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the task is done, above and here, and all is receipted."""
        if self._over_s is None or not self.agent.finished:
            return False
        return self._clock() - self._over_s >= LINGER_S

    def run(self, link: DeviceLink, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until finished; either way all is on disk.

        Raises what `step` raises.
        """
        self.agent.begin(link, stop)
        while not (stop.is_set() or (until_done and self.finished)):
            self.step(TICK_S)

    def step(self, timeout_s: float) -> None:
        """Take what comes, from below and from above, and do what is due.

        Raises RunFolderError, BlobError when the disk fails, ModelError for a bundle that is no use here.
        """
        self.ground.step(timeout_s)
        for _ in range(MOST_EVENTS):
            if not self.agent.step():
                break
        if self.agent.done:
            self._end()
        else:
            self._over_s = None
            self._say_who_is_here()

    def close(self) -> None:
        """Let go of the folders."""
        self.ground.leave()

    def _end(self) -> None:
        """The task is done above: so it is here."""
        if self._over_s is None:
            self._over_s = self._clock()
            if self.ground.site is not None:
                self.ground.site.farewell()
        self.ground.leave()

    def _say_who_is_here(self) -> None:
        """The aggregator above waits for a site as soon as there is somebody to wait for, and no longer."""
        roll, now = self.ground.roll, self._clock()
        samples = roll.samples if roll.devices >= self._rules.min_devices else 0
        if self.ground.site is None or samples == self._said:
            return
        if bool(samples) != bool(self._said) or now - self._said_s >= HELLO_S:
            self._said, self._said_s = samples, now
            self.agent.hello()
