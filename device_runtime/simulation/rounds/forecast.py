"""Predicts the costs of a round for each device of a fleet, and who is a straggler, without training.

A device is a straggler if a full update does not fit its memory, or the share of the deadline that plans may
fill (`device.selection.choose.MARGIN`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isinf, log10, nan

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.tasks.feasible import with_possible_head
from device_runtime.device.selection.choose import (
    MAIN,
    MARGIN,
    USUAL,
    Candidate,
    Loads,
    UploadTerms,
    choose,
    policy_named,
    priced,
)
from device_runtime.profiles import DeviceProfile
from device_runtime.profiles.cost import MissingGraph, misfit_reasons, with_upload
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.clock.devices import FleetState
from device_runtime.simulation.clock.timeline import AskConditions, timeline
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.history.bases import ShippedModel
from device_runtime.simulation.scenarios.scenario import Scenario
from device_runtime.strategies.interface.capabilities import SendsScalars
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.statistics import kind_statistics

from .masked_sums import SimulatedSums
from .run import Load, PreparedRun, check_task, prepare, selected_devices

log = logging.getLogger(__name__)

MOST_PREDICTED = 1000
"""Devices that are looked at; of a larger fleet so many, evenly spaced."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class KindForecast:
    """What one kind of update costs each device, in its richest form. Arrays (n,), as in `FleetForecast`.

    seconds: from the offer to the arrival of the update; memory_bytes: of the whole process; energy_j: of one
    round. All are nan where the device cannot do this kind.
    fits: some form of it fits the device's memory and the deadline.
    sends: the device would send it.
    misfit: why it fits no device, the most frequent reason; empty if it fits one.
    """

    kind: str
    seconds: Floats
    memory_bytes: Floats
    energy_j: Floats
    fits: Flags
    sends: Flags
    misfit: str = ""


@dataclass(frozen=True)
class FleetForecast:
    """What a round costs the n devices that were looked at, of the `devices` of the fleet that train.

    groups: the group of each device. kinds: in the task's order of preference.
    straggler: bool (n,).
    memory_limit_bytes: what training may reach, (n,).
    needs_s: float64 (n,): the shortest deadline with which a device is no straggler; inf: it lacks memory.
    """

    name: str
    bundle: str
    deadline_s: float
    devices: int
    groups: tuple[str, ...]
    kinds: tuple[KindForecast, ...]
    straggler: Flags
    memory_limit_bytes: Floats
    needs_s: Floats

    def of_group(self, group: str) -> Flags:
        """Which of the devices are of this group, bool (n,)."""
        return np.array([name == group for name in self.groups])

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups, those first that need the shortest deadline."""
        return tuple(
            sorted(set(self.groups), key=lambda name: (np.median(self.needs_s[self.of_group(name)]), name))
        )

    def deadline_for(self, share: float) -> float:
        """The seconds that make this share of the devices (0 to less than 1) stragglers, or the nearest one.

        Raises ScenarioError where more of them lack the memory for a full update, whatever the deadline.
        """
        return _deadline_of(self.needs_s, share)


def forecast(scenario: Scenario, seed: int = 0, load: Load = data_sets.load) -> FleetForecast:
    """What the scenario's task costs its devices, drawn by `seed`.

    `seconds` are those of a round in which a device fetches a whole base. Raises as `prepare` does, and
    ScenarioError for a task that cannot be done with this bundle.
    """
    prepared = prepare(scenario, seed, load)
    scenario = prepared.scenario
    fleet = _PricedFleet(prepared)
    lines = [fleet.device(int(device)) for device in fleet.looked_at]
    names = tuple(dict.fromkeys(kind.name for kind in fleet.kinds))
    return FleetForecast(
        name=scenario.fleet.name,
        bundle=prepared.inputs.bundle.manifest.name,
        deadline_s=scenario.task.round_deadline_s,
        devices=fleet.count,
        groups=tuple(line.group for line in lines),
        kinds=tuple(_of_kind(name, lines) for name in names),
        straggler=np.array([line.straggler for line in lines]),
        memory_limit_bytes=np.array([line.memory_limit_bytes for line in lines], np.float64),
        needs_s=np.array([line.needs_s for line in lines]),
    )


@dataclass(frozen=True)
class _DeviceLine:
    """The forecast of one device: its candidates by kind, the richest first, and the kind that it sends."""

    group: str
    candidates: Mapping[str, tuple[Candidate, ...]]
    sends: str
    straggler: bool
    memory_limit_bytes: int
    needs_s: float


def _of_kind(name: str, lines: list[_DeviceLine]) -> KindForecast:
    costs = [next((c.cost for c in line.candidates.get(name, ()) if c.cost), None) for line in lines]
    fits = np.array([any(not c.misfits for c in line.candidates.get(name, ())) for line in lines])
    reasons = Counter(c.misfits[0] for line in lines for c in line.candidates.get(name, ()) if c.misfits)
    return KindForecast(
        name,
        seconds=np.array([nan if cost is None else cost.seconds for cost in costs]),
        memory_bytes=np.array([nan if cost is None else cost.peak_memory_bytes for cost in costs]),
        energy_j=np.array([nan if cost is None else cost.energy_j for cost in costs]),
        fits=fits,
        sends=np.array([line.sends == name for line in lines]),
        misfit="" if fits.any() or not reasons else reasons.most_common(1)[0][0],
    )


class _PricedFleet:
    """The devices of a prepared run, with what they fetch in a round."""

    def __init__(self, prepared: PreparedRun) -> None:
        scenario, inputs = prepared.scenario, prepared.inputs
        task = with_possible_head(scenario.task, inputs.bundle.manifest)
        try:
            check_task(scenario.task, prepared)
        except AggregatorError as error:
            raise ScenarioError(str(error)) from None
        manifests = {member: bundle.manifest for member, bundle in inputs.bundles.items()}
        self._deadline_s = task.round_deadline_s
        self._fleet, selected = selected_devices(task, prepared)
        self._devices = FleetState(self._fleet, inputs.clients, manifests, scenario.slow)
        self._policy = policy_named(scenario.choose)
        sums = SimulatedSums.of(task, inputs.clients, manifests)
        self._terms: UploadTerms | None = sums.upload_terms if sums else None
        self.kinds = task.preferred(min(2, task.rounds))  # round 1 may have other kinds than all that follow
        steps_alone = all(isinstance(kind, SendsScalars) for kind in self.kinds)
        self._base_bytes = {
            member: 0 if steps_alone else sum(ShippedModel.of(bundle).sizes)
            for member, bundle in inputs.bundles.items()
        }
        train = np.arange(scenario.devices) if selected is None else np.flatnonzero(selected.trains)
        self.count = len(train)
        looked_at = min(MOST_PREDICTED, self.count)
        self.looked_at = train[np.linspace(0, self.count - 1, looked_at).round().astype(np.int64)]

    def device(self, device: int) -> _DeviceLine:
        profile, loads = self._devices.profile(device), self._devices.known(device).loads
        latency_s = self._fleet.latency_s(device)
        line = timeline(
            profile,
            loads,
            AskConditions(
                now=0.0,
                closes_at=self._deadline_s,
                down_bytes=self._base_bytes.__getitem__,
                kinds=self.kinds,
                latency_s=latency_s,
                policy=self._policy,
                upload_terms=self._terms,
            ),
        )
        fetching = {m: replace(load, download_bytes=self._base_bytes[m]) for m, load in loads.items()}
        usable_s = self._deadline_s - 2 * latency_s
        plan = choose(profile, self.kinds, fetching, usable_s, upload_terms=self._terms)
        by_kind: dict[str, tuple[Candidate, ...]] = {}
        for each in plan.candidates:
            cost = each.cost and replace(each.cost, seconds=each.cost.seconds + 2 * latency_s)
            by_kind[each.kind] = (*by_kind.get(each.kind, ()), replace(each, cost=cost))
        chosen = line.outcome.plan.chosen
        return _DeviceLine(
            self._fleet.group(device),
            by_kind,
            "" if chosen is None else chosen.kind,
            line.straggler,
            profile.memory.limit_bytes,
            self._needs_s(profile, loads, latency_s),
        )

    def _needs_s(self, profile: DeviceProfile, loads: Loads, latency_s: float) -> float:
        """The shortest deadline with which `timeline` finds a device no straggler; inf: there is none."""
        try:
            cost = priced(self._full, loads, profile)
        except MissingGraph:
            return inf
        if self._terms is not None:
            cost = with_upload(cost, self._terms.bytes_up(self._full), profile)
        if misfit_reasons(cost, profile.memory, inf):
            return inf
        if len(loads) > 1:  # it chooses a model before it fetches that
            return cost.seconds / MARGIN
        return latency_s + self._base_bytes[MAIN] / profile.bandwidth.down + cost.seconds / MARGIN

    @property
    def _full(self) -> AnyStrategy:
        """The update by which stragglers are judged, with the least class statistics that it may have."""
        forms = (form for kind in self.kinds for form in kind.variants())
        full = next((form for form in forms if form.name == USUAL.name), USUAL)
        if full.statistics is None:
            return full
        return kind_statistics.with_most_classes(kind_statistics.without_moments(full) or full, 1)


def with_deadline(scenario: Scenario, load: Load = data_sets.load) -> Scenario:
    """The scenario with the deadline by which `scenario.stragglers` of its devices are stragglers.

    The seconds are those of the devices of seed 0, rounded up to three digits where that makes no difference;
    they are logged. A scenario without `stragglers` is returned as it is. Raises ScenarioError where too many
    devices lack the memory for a full update, and as `forecast` does.
    """
    share = scenario.stragglers
    if share is None:
        return scenario
    fixed = msgspec.structs.replace(scenario, stragglers=None)
    predicted = forecast(fixed, 0, load)
    deadline_s = predicted.deadline_for(share)
    late = predicted.needs_s > deadline_s
    by_group = Counter(group for group, is_late in zip(predicted.groups, late, strict=True) if is_late)
    whole = Counter(predicted.groups)
    names = ", ".join(f"{name} {by_group[name]} of {whole[name]}" for name in predicted.group_names[::-1])
    log.info(
        "deadline %g s: %d of %d devices (%.0f%%) are stragglers (%s)",
        deadline_s,
        late.sum(),
        len(late),
        100 * late.mean(),
        names,
    )
    task = msgspec.structs.replace(fixed.task, round_deadline_s=deadline_s)
    return msgspec.structs.replace(fixed, task=task)


def _deadline_of(needs_s: Floats, share: float) -> float:
    """The deadline that so many devices miss, by what each needs, (n,)."""
    ordered, count = np.sort(needs_s), len(needs_s)
    without_memory = int(np.isinf(ordered).sum())
    in_time = count - round(share * count)  # devices that are no stragglers
    if in_time > count - without_memory:
        raise ScenarioError(
            f"deadline for {share:.0%} stragglers: {without_memory} of {count} devices lack the memory for a "
            f"full update, whatever the deadline; expected {ceil(100 * without_memory / count)}% or more"
        )
    # where devices need equally long, the nearest number of them
    places = [
        place for place in range(count - without_memory) if place + 1 == count or _apart(ordered, place)
    ]
    if not places:
        raise ScenarioError("every device lacks the memory for a full update, whatever the deadline")
    place = min(places, key=lambda each: (abs(each + 1 - in_time), each))
    exact, following = float(ordered[place]), float(ordered[place + 1]) if place + 1 < count else inf
    if in_time == 0 and place == 0:
        return exact / 2
    step = 10.0 ** (floor(log10(exact)) - 2)
    rounded = float(f"{ceil(exact / step) * step:.6g}")
    if rounded < following:
        return rounded
    return exact * (1 + 1e-9) if isinf(following) else (exact + following) / 2


def _apart(ordered: Floats, place: int) -> bool:
    """Whether a deadline fits the device at this place and not the next one."""
    return bool(ordered[place + 1] > ordered[place] * (1 + 1e-6))
