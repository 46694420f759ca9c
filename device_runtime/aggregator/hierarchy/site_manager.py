"""Where a site is kept and how it is reached: one site at a time, that of the run above it."""

from __future__ import annotations

import hashlib
import logging
import queue
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.intake.limits import MOST_DEVICES
from device_runtime.aggregator.rounds import given_rounds as outside
from device_runtime.aggregator.rounds.given_rounds import Outside
from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.aggregator.storage import database
from device_runtime.aggregator.storage.run_files import Records
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.task import KindSettings, Late, Task
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Event, Received
from device_runtime.broker.wire.messages import MessageError, Offer, State, decode
from device_runtime.broker.wire.topics import TopicError
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.kind import AnyStrategy, ClassStatistics

from .site import Roster, Site

log = logging.getLogger(__name__)

OPEN_END = 1_000_000
"""Rounds of a site's task: it has as many as there are above."""


@dataclass(frozen=True)
class SiteRules:
    """What is decided at the site itself.

    With fewer than `min_devices` that are ready the edge is not ready either, and no round above waits for
    it; with fewer than `min_contributions` the site has nothing to forward. `late` as in a task.
    """

    min_devices: int = 1
    min_contributions: int = 1
    late: Late = "discard"


class Ground:
    """Opens sites below `folder`, and hands on what the link of the site brings.

    Who is there is known before a site is open, and to the next one: what else comes while none is open is
    dropped, and devices say it again.
    """

    def __init__(self, folder: Path, rules: SiteRules, ports: Ports) -> None:
        """The observers of `ports` are told of every site."""
        self.folder, self.rules = folder, rules
        self.roll = Roster()
        self.site: Site | None = None
        self._at = folder
        self._ports = replace(ports, observers=(self.roll, *ports.observers))
        self._present: dict[str, dict[str, Received]] = {}

    def enter(self, offer: Offer, kinds: Sequence[AnyStrategy], bundle: Bundle) -> Site:
        """The site of this run above and these kinds: the one at hand, or another, for which that is closed.

        Other sites are removed from the disk, unless one has contributions that were not forwarded: their
        devices have receipts. Raises RunFolderError, and what Rounds raises.
        """
        task = self._task(offer, kinds, bundle)
        of_run = self._of_run(offer)
        folder = of_run / hashlib.sha256(task.json()).hexdigest()[:16]
        if self.site is None or self._at != folder:
            self.leave()
            for other in (*self.folder.glob("*/*"), *self.folder.glob("*")):
                if other not in (of_run, folder):
                    _remove(other)
            self.site = self._opened(task, folder)
        return self.site

    def enter_any(self, offer: Offer) -> Site | None:
        """The site of the run above, whatever its kinds: the one at hand, or what an earlier life left.

        Raises RunFolderError, TaskError, and what Rounds raises.
        """
        if self.site is not None and self._at.parent != self._of_run(offer):
            self.leave()
        left = [] if self.site else list(self._of_run(offer).glob(f"*/{outside.FILE}"))
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
        """Take what the link brings for so many seconds, or until nothing does, and look at the clock."""
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
        """Those who are known to be there are, from the start."""
        observers = (*self._ports.observers, Records(folder))
        site = Site(task, folder, replace(self._ports, observers=observers))
        self._at = folder
        for said in list(self._present.values()):
            for event in said.values():
                site.handle(event)
        return site

    def _take(self, event: Event) -> None:
        if isinstance(event, Received):
            self._note(event)
        if self.site is not None:
            self.site.handle(event)

    def _note(self, event: Received) -> None:
        """The last word of each device, of as many as a site knows, on whether it is there, and with what."""
        try:
            address = topics.parse(event.topic)
            if address.leaf == "state" and event.payload and not decode(event.payload, State).online:
                self._present.pop(address.device, None)
            elif address.leaf in ("state", "hello") and event.payload and self._has_room(address.device):
                self._present.setdefault(address.device, {})[address.leaf] = event
        except (TopicError, MessageError):
            return  # the site says what is wrong with it

    def _has_room(self, device: str) -> bool:
        return device in self._present or len(self._present) < MOST_DEVICES

    def _of_run(self, offer: Offer) -> Path:
        """Names come over the wire: they are no paths."""
        return self.folder / hashlib.sha256(f"{offer.task}\0{offer.run}".encode()).hexdigest()[:16]

    def _task(self, offer: Offer, kinds: Sequence[AnyStrategy], bundle: Bundle) -> Task:
        """With class statistics where the kinds have them; they are the same for all kinds of a task."""
        statistics = next((kind.statistics for kind in kinds if kind.statistics is not None), None)
        return Task(
            bundle=str(bundle.path.resolve()),
            name=offer.task,
            rounds=OPEN_END,
            min_contributions=self.rules.min_contributions,
            late=self.rules.late,
            wait_for="all",
            head="trained" if statistics is None else "closed-form",
            statistics=statistics or ClassStatistics(),
            kinds=tuple(KindSettings(name=kind.name, settings=msgspec.to_builtins(kind)) for kind in kinds),
        )


def _remove(site: Path) -> None:
    """A site's folder, or that of a run without sites; not one with contributions to forward."""
    if any((inner / outside.FILE).exists() for inner in site.glob("*")):
        return  # a run of which a site was kept
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
    """Contributions of a round that was given and is not closed. Raises AggregatorError, BrokerError."""
    given = Outside(site).latest
    if given is None or not (site / database.FILE).exists():
        return 0
    with closing(Store(site, reading=True)) as store:
        if store.closed(given.number):
            return 0
        return sum(1 for _ in store.contributions.of_round(given.number))
