"""Runs a site as a device's task: the site's devices train, and one merged update is sent above."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.broker.wire.messages import Hello, Offer
from device_runtime.broker.wire.transfer import SendingLink
from device_runtime.device.agent.agent import Agent
from device_runtime.device.backend.in_process import InProcess
from device_runtime.device.engine.engine_guard import guard_engine, limit_bytes
from device_runtime.device.selection.choose import MAIN, MARGIN, Candidate, UpdateChoice
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.one_task import OneTask, RoundInputs
from device_runtime.device.training.settings import Settings
from device_runtime.device.training.work import Decision, Listener, WorkOutcome
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.profiles import StragglerVerdict
from device_runtime.profiles.measure import UNMEASURED_LINK
from device_runtime.strategies.codecs.chain import Encoded
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import NO_TENSORS, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.statistics import kind_statistics

from . import forwarding
from .forwarding import NothingToForward, SiteKinds, default_site_kinds, site_kinds
from .site import Site, SiteResult
from .site_host import SiteHost, SiteRules

log = logging.getLogger(__name__)

MOST_SPARE_S = 30.0
"""The most seconds kept free before a deadline above, unless merging and uploading have taken longer."""
NEW_DEADLINE_S = 1.0
"""The site gets a new deadline only if the one above has moved by more than this, in seconds."""
NO_STRAGGLER = StragglerVerdict(False, ())


@dataclass(frozen=True)
class _Given:
    """A round that this process gave to the site, with the deadline above and that of the site."""

    offer: Offer
    closes_at: float
    site_closes_at: float


class SiteTask(OneTask):
    """See OneTask. The site works in another loop (`SiteHost.step`); `train_round` checks its progress."""

    def __init__(
        self,
        site_host: SiteHost,
        settings: Settings,
        bundles: Mapping[str, Bundle],
        clock: Callable[[], float],
        link: LinkSpeed,
    ) -> None:
        self.engine_guard = guard_engine(None, None)
        self._site_host, self._clock, self._link = site_host, clock, link
        self._bundles = bundles
        self._current: _Given | None = None
        self._logged: tuple[str, ...] = ()

    def hello(self, boot: int) -> Hello:
        """The hello of the site, with the samples of all its devices; 0 until enough devices are ready."""
        devices = self._site_host.site_devices
        ready = devices.count >= self._site_host.rules.min_devices
        return Hello(
            boot=boot,
            num_examples=devices.samples if ready else 0,
            profile=f"site of {devices.count}",
            memory_bytes=limit_bytes(None, None),
            engine="edge",
        )

    def bundle(self, member: str) -> Bundle:
        return self._bundles[member]

    def member(self, offer: Offer, remaining_s: float) -> str:
        """The main model, as sites merge no other. Also opens the site, so that its devices can get ready
        before the site has a round.

        Raises RunFolderError, KindError.
        """
        bundle = self._bundles[MAIN]
        try:
            kinds = site_kinds(offer, bundle.manifest, bundle.weights()).offered if offer.kinds else ()
        except NothingToForward:
            kinds = ()
        try:
            if self._site_host.enter_any(offer) is None:
                self._site_host.enter(offer, kinds or default_site_kinds(bundle.manifest), bundle)
        except TaskError as error:
            log.warning("the site cannot get ready: %s", error)
        return MAIN

    def encoded(self, inputs: RoundInputs, outcome: WorkOutcome, left: Tensors) -> Encoded:
        """The forwarded update, encoded with the codec of its kind above; scalars have none."""
        update, chosen = outcome.update, outcome.plan.chosen
        if update is None or chosen is None:
            raise ValueError("nothing was merged")
        return capabilities.codec_of(chosen.strategy).encode(update.tensors, inputs.base, left)

    def keep(self, offer: Offer, update: Update) -> None:
        """Nothing to keep: only the site's devices have a strategy state."""

    def unsent(self, offer: Offer) -> tuple[RoundInputs, WorkOutcome] | None:
        """End the site's round when another one is offered; what it has may count late above.

        Raises RunFolderError, KindError.
        """
        site = self._site_host.enter_any(offer)
        inputs = site.end(offer) if site else None
        if site is None or inputs is None or inputs.offer.run != offer.run:
            return None
        merged = site.result(inputs.offer.round)
        if isinstance(merged, str):
            log.warning("round %d above ended without this site: %s", inputs.offer.round, merged)
            return None
        bundle = self._bundles[MAIN]
        return inputs, _outcome(merged, site_kinds(inputs.offer, bundle.manifest, inputs.base), bundle)

    def train_round(self, inputs: RoundInputs, closes_at: float, listener: Listener) -> WorkOutcome | None:
        """None while the site works on the round, then its merged update, or why it sits out.

        Raises RunFolderError when the site's disk fails, KindError for an offer of unknown kinds.
        """
        bundle = self._bundles[MAIN]
        try:
            kinds = site_kinds(inputs.offer, bundle.manifest, inputs.base)
            site = self._site_host.enter(inputs.offer, kinds.offered, bundle)
            forwarded = _forwarded_bytes(kinds.forwarded, bundle, inputs.offer)
        except (NothingToForward, TaskError, MaskError) as error:
            return _sits_out(str(error), listener)
        if kinds.left_out != self._logged:
            self._logged = kinds.left_out
            for reason in kinds.left_out:
                log.warning("not asked of the site's devices: %s", reason)
        why = self._advance(site, inputs, closes_at, forwarded)
        if why is not None:
            return _sits_out(why, listener)
        if site.phase(inputs.offer) != "merged":
            return None
        merged = site.result(inputs.offer.round)
        if isinstance(merged, str):
            return _sits_out(merged, listener)
        outcome = _outcome(merged, kinds, bundle)
        listener.decided(Decision(outcome.plan, outcome.gave_up, inf))
        return outcome

    def _advance(self, site: Site, inputs: RoundInputs, closes_at: float, forwarded: int) -> str | None:
        """Give the site the round, or a new deadline for it. Returns why the site sits out, if it does.

        `forwarded`: the bytes that the site will send above.
        """
        now, phase = self._clock(), site.phase(inputs.offer)
        if phase == "merged":
            return None
        current = self._current
        same = current is not None and (current.offer.run, current.offer.round) == (
            inputs.offer.run,
            inputs.offer.round,
        )
        if phase == "other" or current is None or not same or closes_at > current.closes_at + NEW_DEADLINE_S:
            margin = self._margin_s(site, forwarded, closes_at - now)
            if closes_at - margin <= now:
                if phase == "open" and _has_enough(site):
                    site.close_round()
                    return None
                return f"{closes_at - now:.1f} s remain, merging and forwarding need {margin:.1f} s"
            site.give(inputs, closes_at - margin - now)
            self._current = _Given(inputs.offer, closes_at, closes_at - margin)
            return None
        site.tick()
        if site.phase(inputs.offer) != "open":
            return None
        over = now >= current.site_closes_at
        if over and _has_enough(site):  # its own deadline is a little later, as giving the round took time
            site.close_round()
            return None
        return self._hopeless(site, over)

    def _hopeless(self, site: Site, over: bool) -> str | None:
        """Why the open round cannot succeed any more; None while it can."""
        if not over and not (site.exhausted and site.contributions == 0):
            return None
        needed, devices = site.task.min_contributions, self._site_host.site_devices
        if site.contributions:
            return f"{site.contributions} of {needed} contributions of the site came in time"
        if devices.idle:
            return f"no device of the site takes part: {devices.idle}"
        return f"none of the {devices.count} devices of the site has answered in time"

    def _margin_s(self, site: Site, forwarded: int, remaining_s: float) -> float:
        """Seconds to keep free before the deadline above: for merging, uploading, and as in any plan."""
        upload_s = forwarded / self._link.over(UNMEASURED_LINK).up
        return max(site.merge_s + upload_s, min((1 - MARGIN) * remaining_s, MOST_SPARE_S))


def _has_enough(site: Site) -> bool:
    return site.contributions >= site.task.min_contributions


def _forwarded_bytes(forwarded: AnyStrategy, bundle: Bundle, offer: Offer) -> int:
    """Bytes of the update that a site sends above. Raises MaskError if it cannot be masked."""
    if offer.masks is not None:
        return layout_of(forwarded, bundle.manifest, NO_TENSORS, offer.masks).content_bytes
    specs = kind_statistics.accepted(forwarded, bundle.manifest)
    return sum(np.dtype(spec.dtype).itemsize * spec.size for spec in specs)


def _specs(forwarded: AnyStrategy, bundle: Bundle) -> Sequence[TensorSpec]:
    return forwarded.expected(bundle.manifest)


def _outcome(merged: SiteResult, kinds: SiteKinds, bundle: Bundle) -> WorkOutcome:
    """The work that the site reports above: its merged update, or that there is none to send."""
    forwarded: AnyStrategy = kinds.forwarded
    content = merged.weights
    if merged.means_alone and kinds.means is not None:
        forwarded = kinds.means
    if capabilities.forwarded_as(forwarded) == "scalars":
        content = forwarding.forwarded_scalars(merged.steps, kinds.length)
    tensors = {spec.name: content[spec.name] for spec in _specs(forwarded, bundle)}
    if merged.statistics is not None:
        tensors |= forwarding.encoded_statistics(merged.statistics, forwarded, merged.num_examples)
    if not tensors:
        return WorkOutcome(
            UpdateChoice(None, (), NO_STRAGGLER), None, gave_up=("no class of the site may be sent",)
        )
    return WorkOutcome(
        plan=UpdateChoice(Candidate(forwarded, None, ()), (), NO_STRAGGLER),
        update=Update(
            forwarded.name,
            tensors,
            merged.num_examples,
            merged.train_loss,
            forwarded.variant,
        ),
        train_time_s=merged.train_time_s,
        energy=merged.energy,
        peak_memory_bytes=merged.peak_memory_bytes,
        gave_up=(merged.summary,),
        epsilon=merged.epsilon,
    )


def _sits_out(why: str, listener: Listener) -> WorkOutcome:
    """Tell the aggregator above that the site sits out, so that it does not wait."""
    plan = UpdateChoice(None, (), NO_STRAGGLER)
    listener.decided(Decision(plan, (why,), inf))
    return WorkOutcome(plan, None, gave_up=(why,))


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
