"""Runs a site in one thread: a device to the aggregator above, an aggregator to its own devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from device_runtime.aggregator.machine.ports import Ports
from device_runtime.broker.wire.transfer import SendingLink
from device_runtime.device.agent.agent import Agent
from device_runtime.device.backend.in_process import InProcess
from device_runtime.device.training.settings import Settings

from .site_host import SiteHost, SiteRules
from .site_task import SiteTask

TICK_S = 0.05
"""Seconds between two steps of the loop when nothing comes."""
MOST_EVENTS = 100
"""Events from above that are handled before the site's own events are."""
HELLO_S = 10.0
"""Seconds between two hellos that tell the aggregator above a changed number of samples."""
LINGER_S = 2.0
"""Seconds that devices of the site get to hear that the task is done."""


class SiteProcess:
    """A device to the aggregator above, by `agent`, and a site for its own devices, by `site_host`.

    The link to the aggregator above is made as for any `Agent`; `ports` connect the site to its own devices.
    """

    def __init__(self, settings: Settings, boot: int, rules: SiteRules, ports: Ports) -> None:
        """`settings.data` is not read. `boot` as in Agent."""
        self._clock: Callable[[], float] = ports.clock
        self._rules = rules
        self.site_host = SiteHost(settings.folder / "site", rules, ports)
        self.agent = Agent(
            settings, boot, ports.clock, partial(InProcess, make=partial(SiteTask, self.site_host))
        )
        self._hello_samples, self._hello_at = 0, 0.0  # samples in the last hello, and when it was sent
        self._over_at: float | None = None
        self._link, self._announced = ports.link, ""

    @property
    def finished(self) -> bool:
        """Whether the task is done above and at the site, and every contribution has its receipt."""
        if self._over_at is None or not self.agent.finished:
            return False
        return self._clock() - self._over_at >= LINGER_S

    def run(self, link: SendingLink, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until finished. Everything is on disk afterwards.

        Raises what `step` raises.
        """
        self.agent.begin(link, stop)
        while not (stop.is_set() or (until_done and self.finished)):
            self.step(TICK_S)
        self._withdraw()

    def step(self, timeout_s: float) -> None:
        """Handle events from the site's devices and from above, and do what is due.

        Raises RunFolderError or BlobError when the disk fails, ModelError for a bundle that cannot be used.
        """
        self.site_host.step(timeout_s)
        for _ in range(MOST_EVENTS):
            if not self.agent.step():
                break
        if self.agent.done:
            self._end()
        else:
            self._over_at = None
            self._report_samples()

    def close(self) -> None:
        """Close the run folder."""
        self.site_host.leave()

    def _end(self) -> None:
        """End the site, as the task is done above."""
        if self._over_at is None:
            self._over_at = self._clock()
            if self.site_host.site is not None:
                self._announced = self.site_host.site.farewell()
        self.site_host.leave()
        if self._clock() - self._over_at >= LINGER_S:
            self._withdraw()

    def _withdraw(self) -> None:
        """Clear the retained offer of a task that is over: its devices have heard so."""
        if self._announced:
            self._link.publish(self._announced, b"", retain=True)
            self._announced = ""

    def _report_samples(self) -> None:
        """Send a hello when the samples change.

        The aggregator above waits for a site only while the site has enough devices.
        """
        devices, now = self.site_host.site_devices, self._clock()
        samples = devices.samples if devices.count >= self._rules.min_devices else 0
        if self.site_host.site is None or samples == self._hello_samples:
            return
        if bool(samples) != bool(self._hello_samples) or now - self._hello_at >= HELLO_S:
            self._hello_samples, self._hello_at = samples, now
            self.agent.hello()
