"""Opens and closes the site for the current run above, and passes it the events of its link."""

from __future__ import annotations

import hashlib
import logging
import queue
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import AggregatorError, TaskError
from device_runtime.aggregator.limits import MOST_DEVICES
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.storage import database, run_files
from device_runtime.aggregator.storage.run_files import GivenRoundStore, Records
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Late, Task
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Event, Received
from device_runtime.broker.wire.messages import MessageError, Offer, State, decode
from device_runtime.broker.wire.topics import TopicError
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics

from .site import Site, SiteDevices

log = logging.getLogger(__name__)

MOST_ROUNDS_OF_SITE = 1_000_000
"""Rounds of a site's task: no limit, as the aggregator above decides when the task is done."""
PRESENCE_BYTES = 2048
"""The longest presence or hello that is kept; a device's have some hundred bytes."""


@dataclass(frozen=True)
class SiteRules:
    """The settings that a site decides itself.

    With fewer than `min_devices` ready devices the site is not ready either, and no round above waits for it.
    With fewer than `min_contributions` it forwards nothing. `late` as in a task.
    """

    min_devices: int = 1
    min_contributions: int = 1
    late: Late = "discard"


class SiteHost:
    """Opens sites below `folder`, one at a time, and passes them the events of the site's link.

    The presence of devices is known before a site is open, and is passed to each new one. Other messages that
    come while no site is open are dropped; devices send them again.
    """

    def __init__(self, folder: Path, rules: SiteRules, ports: Ports) -> None:
        """The observers of `ports` observe every site."""
        self.folder, self.rules = folder, rules
        self.site_devices = SiteDevices()
        self.site: Site | None = None
        self._at = folder
        self._ports = replace(ports, observers=(self.site_devices, *ports.observers))
        self._present: dict[str, dict[str, Received]] = {}

    def enter(self, offer: Offer, kinds: Sequence[AnyStrategy], bundle: Bundle) -> Site:
        """The site for this run above and these kinds. If another site is open, it is closed first.

        Other sites are removed from the disk, except those with contributions that were not forwarded, as
        their devices have receipts. Raises RunFolderError, and what Site raises.
        """
        task = self._task(offer, kinds, bundle)
        of_run = self._of_run(offer)
        folder = _folder_of(task, of_run)
        if self.site is None or self._at != folder:
            self.leave()
            for other in (*self.folder.glob("*/*"), *self.folder.glob("*")):
                if other not in (of_run, folder):
                    _remove(other)
            self.site = self._opened(task, folder)
        return self.site

    def enter_any(self, offer: Offer) -> Site | None:
        """The site of the run above, whatever its kinds: the open one, or the latest one on disk.

        Raises RunFolderError, TaskError, and what Site raises.
        """
        if self.site is not None and self._at.parent != self._of_run(offer):
            self.leave()
        left = [] if self.site else list(self._of_run(offer).glob(f"*/{run_files.GIVEN_ROUND_FILE}"))
        if left:
            folder = max(left, key=lambda file: file.stat().st_mtime_ns).parent
            with closing(Store(folder, reading=True)) as store:
                identity = store.identity()
            if identity is not None:
                self.site = self._opened(tasks.decode(identity.task), folder)
        return self.site

    def leave(self) -> None:
        """Close the site that is open. May be called twice."""
        if self.site is not None:
            self.site.close()
        self.site = None

    def step(self, timeout_s: float) -> None:
        """Handle events of the link for `timeout_s` or until none is left, then do what is due."""
        end = self._ports.clock() + timeout_s
        try:
            self._take(self._ports.inbox.get(timeout=timeout_s))
            while self._ports.clock() < end:
                self._take(self._ports.inbox.get_nowait())
        except queue.Empty:
            pass
        if self.site is not None:
            self.site.tick()

    def _opened(self, task: Task, folder: Path) -> Site:
        """Open a site, and tell it which devices are online."""
        observers = (*self._ports.observers, Records(folder))
        site = Site(task, folder, replace(self._ports, observers=observers))
        self._at = folder
        for presence in list(self._present.values()):
            for event in presence.values():
                site.handle(event)
        return site

    def _take(self, event: Event) -> None:
        """Note the presence in an event, and pass the event to the open site."""
        if isinstance(event, Received):
            self._note(event)
        if self.site is not None:
            self.site.handle(event)

    def _note(self, event: Received) -> None:
        """Keep the latest presence and hello of each online device, for up to MOST_DEVICES."""
        if len(event.payload) > PRESENCE_BYTES:
            return
        try:
            address = topics.parse(event.topic)
            if address.leaf == "state" and event.payload and not decode(event.payload, State).online:
                self._present.pop(address.device, None)
            elif address.leaf in ("state", "hello") and event.payload and self._has_room(address.device):
                self._present.setdefault(address.device, {})[address.leaf] = event
        except (TopicError, MessageError):
            return  # the site logs what is wrong with it

    def _has_room(self, device: str) -> bool:
        return device in self._present or len(self._present) < MOST_DEVICES

    def _of_run(self, offer: Offer) -> Path:
        """The folder of a run: a hash, as the names in an offer must not become paths."""
        return self.folder / hashlib.sha256(f"{offer.task}\0{offer.run}".encode()).hexdigest()[:16]

    def _task(self, offer: Offer, kinds: Sequence[AnyStrategy], bundle: Bundle) -> Task:
        """The site's task. Class statistics are the same for all kinds that have them."""
        statistics = next((kind.statistics for kind in kinds if kind.statistics is not None), None)
        return Task(
            bundle=str(bundle.path.resolve()),
            name=offer.task,
            title=offer.title,
            about=offer.about,
            ask=offer.ask,
            rounds=MOST_ROUNDS_OF_SITE,
            min_contributions=self.rules.min_contributions,
            late=self.rules.late,
            wait_for="all",
            head="trained" if statistics is None else "closed-form",
            statistics=statistics or ClassStatistics(),
            rest="on",
            kinds=tuple(KindSettings(name=kind.name, settings=msgspec.to_builtins(kind)) for kind in kinds),
        )


def _folder_of(task: Task, of_run: Path) -> Path:
    """The folder of a site. One that an older version began is used further."""
    for file in of_run.glob(f"*/{run_files.TASK_FILE}"):
        with suppress(OSError, TaskError):
            if tasks.decode(file.read_bytes()).untitled.json() == task.untitled.json():
                return file.parent
    return of_run / hashlib.sha256(task.untitled.json()).hexdigest()[:16]


def _remove(site: Path) -> None:
    """Remove a site's folder, or an empty run folder; folders with unforwarded contributions stay."""
    if any((inner / run_files.GIVEN_ROUND_FILE).exists() for inner in site.glob("*")):
        return  # the folder of a run with a site that was kept
    try:
        waiting = _waiting(site)
    except (AggregatorError, BrokerError) as error:
        log.warning("%s is kept, as it cannot be read: %s", site, error)
        return
    if waiting:
        log.warning("%s is kept: %d contributions of its open round were not forwarded", site, waiting)
    else:
        shutil.rmtree(site, ignore_errors=True)


def _waiting(site: Path) -> int:
    """The number of contributions to an open given round. Raises AggregatorError, BrokerError."""
    latest = GivenRoundStore(site).latest
    if latest is None or not (site / database.FILE).exists():
        return 0
    with closing(Store(site, reading=True)) as store:
        if store.rounds.closed(latest.number):
            return 0
        return sum(1 for _ in store.contributions.of_round(latest.number))
