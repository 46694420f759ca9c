"""One task on this device: its model, samples and costs, and the work on its rounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from device_runtime.broker.wire.messages import Hello, Offer
from device_runtime.device.delivery.cache import StrategyStateStore
from device_runtime.device.energy import Account
from device_runtime.device.engine.engine_guard import guard_engine, limit_bytes, own_memory
from device_runtime.device.engine.profiling import cache_key, clocks, device_speed, profile, ready
from device_runtime.device.errors import OutOfMemory
from device_runtime.device.masking.upload_terms import terms_of_offer
from device_runtime.device.personal import after_round
from device_runtime.device.personal.after_round import OwnHead, personal_evaluation
from device_runtime.device.personal.kept import PersonalModelStore
from device_runtime.device.policy.privacy_budget import PrivacyGuard
from device_runtime.device.policy.rules import AllowList
from device_runtime.device.selection.choose import MAIN, UpdateChoice, UploadTerms, choose, policy_named
from device_runtime.device.selection.resting import RestRule
from device_runtime.device.traffic import LinkSpeed
from device_runtime.machine_readings import collect_and_trim, load_per_core
from device_runtime.models import data as local_data
from device_runtime.models.available_engines.available import engine_choice, open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.data import SampleSource, Selection
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import ModelError
from device_runtime.profiles import DeviceProfile, Workload
from device_runtime.strategies.codecs.chain import Encoded
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import LocalData, OutOfTime, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.statistics import held_out, kind_statistics
from device_runtime.strategies.training.workload import workload

from .calibration import Corrections, Measurements
from .one_task import OneTask, RoundInputs
from .settings import Settings
from .work import Assignment, Decision, Listener, RealWorker, WorkOutcome, train_richest

log = logging.getLogger(__name__)


class TaskSamples:
    """A device's samples for its task, with the workload and the privacy guard that follow from them.

    `training` is trained on, `holdout` is held out; `loads` are the workloads by member of the family.
    """

    def __init__(self, place: SampleSource | Path, bundles: Mapping[str, Bundle], keep: Selection) -> None:
        """Reads the samples. Raises DataError if none suits the task."""
        self._bundles = bundles
        self._samples = local_data.open_samples(place, bundles[MAIN].manifest, keep, bundles[MAIN].texts)

    @property
    def training(self) -> LocalData:
        return self._samples.training

    @property
    def holdout(self) -> LocalData:
        return self._samples.holdout

    @property
    def reconstructs(self) -> bool:
        """Whether the task's model reconstructs its input: it is judged without samples held out, too."""
        return self._bundles[MAIN].manifest.target.compared == "input"

    @property
    def held_text(self) -> str:
        """The number of classes among the samples, or the loss that they are for."""
        target = self._bundles[MAIN].manifest.target
        if target.compared == "classes":
            return f"of {len(np.unique(self.training.y))} classes"
        return f"for {target.description}"

    @property
    def loads(self) -> dict[str, Workload]:
        counts = self.training.class_counts(len(self._bundles[MAIN].manifest.labels))
        return {member: workload(bundle.manifest, counts) for member, bundle in self._bundles.items()}

    def guard(self, settings: Settings) -> PrivacyGuard:
        """The privacy guard of the device with these settings, for the samples that were read."""
        place, stamp = self._samples.source, self._samples.stamp
        return PrivacyGuard.of(settings.folder, place, settings.owner, stamp, settings.allowed)

    def refresh(self) -> bool:
        """Read new and changed samples; returns whether there were any. Raises KindError if none is left."""
        changed = self._samples.refresh()
        if not len(self.training):
            raise KindError(f"no samples are left in {self._samples.source}")
        if not changed:
            return False
        for skipped in self._samples.skipped:
            log.info("skipped %s", skipped)
        log.info("%d samples now, %d held out", len(self.training), len(self.holdout))
        return True


class DeviceTask(OneTask):
    """A device's task, made once the bundles are here: loads samples, opens the engine, measures its speed.

    The speed is reused if it was measured before. Smaller models of a family are taken to be as fast,
    operation for operation, as the main one.
    """

    def __init__(
        self,
        settings: Settings,
        bundles: Mapping[str, Bundle],
        clock: Callable[[], float],
        link: LinkSpeed,
    ) -> None:
        """`bundles` by member, the main one by ""; `link` goes on learning the link's speed.

        Raises DataError, ModelError, OutOfMemory.
        """
        self.settings = settings
        self._policy = policy_named(settings.choose)
        bundle = bundles[MAIN]
        self.manifest = bundle.manifest
        self._bundles = bundles
        self._samples = TaskSamples(settings.data, bundles, _keep(settings))
        self._keeper = PersonalModelStore(settings.folder)
        self.engine_guard = guard_engine(settings.emulation, settings.memory_bytes)
        self.engine_guard.elsewhere_bytes = settings.elsewhere_bytes
        self._engine_settings = replace(settings.engine, run_bytes=self.engine_guard.run_bytes)
        self.model = open_model(bundle, self._engine_settings, watch=self.engine_guard)
        self._states = StrategyStateStore(settings.folder / "memory")
        self._engine = f"{engine_choice(bundle, settings.engine)}"
        self._virtual = settings.emulation if settings.emulation and settings.emulation.time else None
        self._measurements = Measurements(settings.folder / "speed.json")
        self._key = cache_key(bundle.sha256, f"{self._engine} {self._engine_settings}", settings.emulation)
        self._clock, self._link = clock, link
        self._logged: tuple[bool, str] | None = None  # whether it is a straggler, and what it sends
        calibration = Corrections(self._virtual.profile.speed) if self._virtual else self._corrections()
        self._calibration, speed = calibration, calibration.speed
        self._rest()
        self.profile = replace(
            self._as_it_is_now(), corrections=calibration.corrections, growth=calibration.growth
        )
        samples = self._samples
        guard = samples.guard(settings)
        account = Account(settings.meter, time.process_time) if settings.emulation is None else Account()
        self._worker = RealWorker(
            settings.name,
            {MAIN: self.model},
            samples.training,
            samples.loads,
            self.engine_guard,
            clock,
            guard,
            account=account,
        )
        log.info(
            "%d samples %s; %.2f ms a forward pass (%s)",
            len(samples.training),
            samples.held_text,
            1e3 * speed.of("forward", bundle.manifest.graphs["forward"].flops),
            speed.source,
        )

    def hello(self, boot: int) -> Hello:
        """The device's hello, now that its samples and profile are known."""
        battery = self.profile.battery
        return Hello(
            boot=boot,
            num_examples=len(self._worker.data),
            profile=self.profile.name,
            memory_bytes=self.profile.memory.limit_bytes,
            engine=self.profile.engine,
            battery_percent=round(battery.percent) if battery else -1,
        )

    def bundle(self, member: str) -> Bundle:
        """The bundle of this member of the family, or the main one's. Raises KeyError."""
        return self._bundles[member]

    def member(self, offer: Offer, remaining_s: float) -> str:
        """The model that the device would train now; the main one if it would sit out.

        Raises KindError when no kind of the offer can be done here.
        """
        if len(self._bundles) == 1 or not offer.kinds:
            return MAIN
        chosen = self._plan(offer, remaining_s).chosen
        return MAIN if chosen is None else chosen.strategy.member

    def rest_reason(self, offer: Offer, remaining_s: float) -> str:
        """Why the device rests in this round; empty if it does not.

        Raises KindError when no kind of the offer can be done here.
        """
        rule = RestRule.of(offer.shortages, offer.seed, self.settings.name) if offer.kinds else None
        return rule.reason(self._plan(offer, remaining_s), self._worker.loads[MAIN]) if rule else ""

    def _plan(self, offer: Offer, remaining_s: float) -> UpdateChoice:
        """The choice before a base is fetched; the time to fetch the only one is not counted."""
        loads = self._worker.loads
        if len(loads) == 1:
            loads = {MAIN: replace(loads[MAIN], download_bytes=0)}
        return choose(
            self._profile_now(),
            self._kinds(offer),
            loads,
            remaining_s,
            self._worker.forbidden_reason,
            policy=self._policy,
            upload_terms=self._upload_terms(offer),
        )

    def _kinds(self, offer: Offer) -> tuple[AnyStrategy, ...]:
        """The kinds of an offer, without class statistics that the owner does not allow.

        Raises KindError when no kind of the offer can be done here.
        """
        return tuple(
            allowed_statistics(kind, self.settings.allowed) for kind in registry.supported_kinds(offer.kinds)
        )

    def _upload_terms(self, offer: Offer) -> UploadTerms | None:
        """How updates of the round are sent; None: as their kinds say. Raises KindError."""
        return terms_of_offer(offer, lambda member: self._bundles[member].manifest)

    def encoded(self, inputs: RoundInputs, outcome: WorkOutcome, left: Tensors) -> Encoded:
        """A round's update as its kind sends it, together with what was left out of earlier ones.

        Raises ValueError for an outcome without an update, TensorError.
        """
        update, chosen = outcome.update, outcome.plan.chosen
        if update is None or chosen is None:
            raise ValueError("nothing was contributed")
        return capabilities.codec_of(chosen.strategy).encode(update.tensors, inputs.base, left)

    def keep(self, offer: Offer, update: Update) -> None:
        """Keep the strategy state of a round's update for the next. Raises OSError."""
        if update.memory is not None:
            self._states.put(offer.run, update.kind, offer.round, update.memory)

    def train_round(self, inputs: RoundInputs, closes_at: float, listener: Listener) -> WorkOutcome:
        """Do the round's work from this base model and learn from how long it took; see `work.train_richest`.

        If the device sits out and its speed is in doubt, the speed is measured anew, and the work is tried
        again in the rest of the round. What the listener raises ends the work and goes to the caller.

        Raises KindError when no kind of the offer can be done here, TensorError for a base that does not fit.
        """
        model = self._loaded(inputs)
        if self.settings.personal.keep:
            after_round.keep(self._keeper, inputs.offer, self._bundles[inputs.member], inputs.base)
        self._refresh_samples()
        outcome = self._attempt(model, inputs, closes_at, listener)
        if self._measure_again():
            outcome = self._attempt(self._loaded(inputs), inputs, closes_at, listener)
        self._rest()
        return outcome

    def _attempt(
        self, model: DeviceModel, inputs: RoundInputs, closes_at: float, listener: Listener
    ) -> WorkOutcome:
        """Do the round's work with its base loaded, and learn from it. Raises as `train_round` does."""
        offer, member = inputs.offer, inputs.member
        self.profile = self._profile_now()
        self.engine_guard.limit_bytes = self.profile.memory.limit_bytes
        self.engine_guard.held_bytes = self._calibration.speed.held_bytes if member == MAIN else {}
        loads = self._worker.loads
        unfetched = {other: load for other, load in loads.items() if other != member}
        worker = replace(
            self._worker,
            models={member: model},
            loads={member: replace(loads[member], download_bytes=0)},
            progress=listener.progress,
            memory=lambda kind: self._states.get(offer.run, kind, offer.round),
            aside=inputs.aside,
            pause_s=listener.pause_s,
            round=offer.round,
            rare=offer.rare,
        )
        assignment = Assignment(
            self._kinds(offer),
            offer.seed,
            closes_at,
            partial(self._decided, listener),
            unfetched,
            listener.pause_s,
            inputs.deaths,
            self._policy,
            self._upload_terms(offer),
        )
        try:
            outcome = train_richest(worker, self.profile, assignment)
        finally:  # also where a pause ends it
            model.unload()
        self._learn(outcome)
        return outcome

    def _decided(self, listener: Listener, decision: Decision) -> None:
        """Says whether the device is a straggler, where this or what it sends has changed."""
        plan = decision.plan
        choice = (plan.straggler.straggler, plan.chosen.label if plan.chosen else "")
        if plan.chosen is not None and choice != self._logged:
            log.info("%s", plan.verdict)
        self._logged = choice
        listener.decided(decision)

    def keep_final_model(self, inputs: RoundInputs, pause_point: Callable[[], None]) -> None:
        """Keep the model that another round would have begun with, and evaluate it.

        `pause_point` as in `evaluate_personal_model`.
        """
        offer = msgspec.structs.replace(inputs.offer, round=inputs.offer.round + 1)
        after_round.keep(self._keeper, offer, self._bundles[inputs.member], inputs.base)
        self.evaluate_personal_model(replace(inputs, offer=offer), pause_point)

    def evaluate_personal_model(self, inputs: RoundInputs, pause_point: Callable[[], None]) -> None:
        """Evaluate the model of a round on the held-out samples, if the owner wants a model kept.

        `pause_point` is called after each run of the engine; a WorkStopped raised there ends it.
        """
        personal, samples = self.settings.personal, self._samples
        if not personal.keep or not (len(samples.holdout) or samples.reconstructs):
            return
        offer = inputs.offer
        own = OwnHead(offer.seed, self.settings.name, self._worker.clock) if personal.head else None
        self.engine_guard.hooked(pause_point)
        try:
            after_round.judge(
                self._keeper,
                offer.round,
                lambda: personal_evaluation(self._loaded(inputs), samples.training, samples.holdout, own),
                " with its trained head" if held_out.has_head(inputs.aside) else "",
            )
        finally:
            self.engine_guard.hooked()
            self._rest()

    def _loaded(self, inputs: RoundInputs) -> DeviceModel:
        """The model of a round, with its base loaded. Raises TensorError.

        A smaller model uses the main one's engine, and is dropped after the round.
        """
        model = self.model
        if inputs.member != MAIN:
            model = open_model(self._bundles[inputs.member], self._engine_settings, watch=self.engine_guard)
        model.load(inputs.base)
        return model

    def _refresh_samples(self) -> None:
        """Include samples that have come since the last round. Raises KindError."""
        samples, settings = self._samples, self.settings
        if samples.refresh():
            guard = samples.guard(settings)
            self._worker = replace(self._worker, data=samples.training, loads=samples.loads, guard=guard)

    def _profile_now(self) -> DeviceProfile:
        """The profile now, with the corrections of earlier rounds."""
        calibration = self._calibration
        return replace(self._as_it_is_now(), corrections=calibration.corrections, growth=calibration.growth)

    def _learn(self, outcome: WorkOutcome) -> None:
        """Correct predictions by a round's outcome, for the next round and after a restart."""
        self._calibration = calibration = self._calibration.after(self.profile, outcome)
        self.profile = replace(self.profile, corrections=calibration.corrections, growth=calibration.growth)
        if not self._virtual:
            self._measurements.put(self._key, calibration)

    def _corrections(self) -> Corrections:
        """Measure the speed, or reuse that of this bundle; the engine is loaded in any case."""
        calibration = self._measurements.get(self._key, self._speed_now)
        self.engine_guard.held_bytes = calibration.speed.held_bytes
        ready(self.model)
        return calibration

    def _speed_now(self) -> Corrections:
        by = clocks(self._clock, self._engine_settings, self.settings.emulation)
        return Corrections(device_speed(self.model, by, self.engine_guard), load=load_per_core())

    def _measure_again(self) -> bool:
        """Measure the speed again if it is in doubt; returns whether it was measured.

        Corrections of time were relative to the old speed and are dropped; those of memory stay. Raises what
        the listener of the round raises.
        """
        why = "" if self._virtual else self._calibration.doubted(load_per_core())
        if not why:
            return False
        log.info("the speed is measured anew: %s", why)
        try:
            calibration = self._speed_now()
        except (OutOfTime, OutOfMemory, ModelError) as error:
            log.warning("the speed is not measured anew: %s", error)
            return False
        finally:
            self.model.unload()
        before = -1  # the current round is tried again, and must not count
        self._calibration = replace(calibration, growth=self._calibration.growth, sat_out=before)
        self._measurements.put(self._key, self._calibration)
        return True

    def _as_it_is_now(self) -> DeviceProfile:
        """Free memory, battery and temperature as of now; the speed as measured."""
        if self._virtual:
            return own_memory(replace(self._virtual.profile, engine=self._engine), self.settings.memory_bytes)
        now = profile(self._calibration.speed, self._engine, self.settings.emulation)
        if self.settings.emulation is None:  # else the link is the emulated board's
            now = replace(now, bandwidth=self._link.over(now.bandwidth))
        return own_memory(now, self.settings.memory_bytes)

    def _rest(self) -> None:
        """Between rounds: close all sessions and give their memory back."""
        self.model.unload()
        if not self._virtual:
            collect_and_trim()


def allowed_statistics(kind: AnyStrategy, allowed: AllowList) -> AnyStrategy:
    """The kind, with class statistics only as far as the owner allows.

    That is where the owner allows class means, and of no fewer samples of a class than the owner's least.
    """
    statistics, least = kind.statistics, allowed.smallest_count or 1
    if statistics is not None and allowed.kinds and ClassMeans.name not in allowed.kinds:
        return kind_statistics.with_class_statistics(kind, None)
    if statistics is None or statistics.smallest_count >= least:
        return kind
    return kind_statistics.with_class_statistics(kind, replace(statistics, smallest_count=least))


def _keep(settings: Settings) -> Selection:
    """Which samples are loaded and held out: half of the process's memory is for samples.

    A virtual device loads all of them, whatever memory its profile has.
    """
    if settings.emulation and settings.emulation.time:
        return Selection()
    room = limit_bytes(settings.emulation, settings.memory_bytes) // 2
    share = settings.personal.held_out if settings.personal.keep else 0.0  # no model to judge
    return Selection(share, room_bytes=room)
