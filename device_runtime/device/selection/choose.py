"""Chooses the richest update that a device can afford. Pure functions over dataclasses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any, ClassVar

from device_runtime.profiles import Cost, DeviceProfile, StragglerVerdict, Workload, classify
from device_runtime.profiles.cost import (
    MissingGraph,
    misfit_reasons,
    speed_on_bundle,
    with_measured_memory,
    with_upload,
)
from device_runtime.strategies.errors import KindError, OwnCodeError, UnsendableError
from device_runtime.strategies.interface.kind import AnyStrategy, unfit_reason
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.plugins import Plugin, own_code
from device_runtime.strategies.statistics import kind_statistics

MARGIN = 0.9
"""Share of the time left that a plan may fill, as predictions are not exact."""

MAIN = ""
"""The main model's name among `loads`."""

ALONE = "was chosen by too few devices to be summed"
"""Why a kind is passed over (`UploadTerms.alone`)."""

USUAL = FedAvg()
"""The update by which stragglers are judged in a round that asks for no full updates."""


Loads = Mapping[str, Workload]
NO_LOADS: Loads = MappingProxyType({})
ForbiddenReason = Callable[[AnyStrategy], str]
Judge = Callable[[AnyStrategy], "Candidate"]
Price = Callable[[AnyStrategy], Cost]


@dataclass(frozen=True)
class UploadTerms:
    """How updates of a round are sent, where that is not as their kinds say.

    alone: kinds that too few devices chose in the round before; one is chosen only if no other kind fits.
    bytes_up: gives the bytes on the wire of an update of a form. Raises UnsendableError.
    """

    alone: tuple[str, ...]
    bytes_up: Callable[[AnyStrategy], int]


@dataclass(frozen=True)
class Candidate:
    """One form of an update, its cost, and why it does not fit, if so.

    `classes`: of how many classes statistics are sent, and of how many they could be. `barred`: it must not
    be trained here, whatever it costs.
    """

    strategy: AnyStrategy
    cost: Cost | None
    misfits: tuple[str, ...]
    classes: tuple[int, int] = (0, 0)
    barred: bool = False

    @property
    def kind(self) -> str:
        return self.strategy.name

    @property
    def label(self) -> str:
        """The kind, with its form where it has several: "entropy-subset 25%"."""
        return f"{self.kind} {self.strategy.variant}".rstrip()

    @property
    def part(self) -> str:
        """Of how many classes statistics are sent, if not of all; else empty."""
        sent, present = self.classes
        return f"sends class statistics of {sent} of {present} classes" if sent < present else ""


@dataclass(frozen=True)
class UpdateChoice:
    """What a device decided to do in a round. `chosen` is None when nothing fits: it sits out.

    `candidates` stand in the order of preference; those after the chosen one were not needed. `straggler` is
    judged on a *full* update, whether or not the round accepts it.
    """

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    straggler: StragglerVerdict

    def ended_as(self, form: AnyStrategy, cost: Cost) -> UpdateChoice:
        """The same choice, cut down to this form and cost when the time ran out."""
        chosen = self.chosen and replace(self.chosen, strategy=form, cost=cost)
        return replace(self, chosen=chosen)

    @property
    def verdict(self) -> str:
        """Whether the device is a straggler for this task, why, and what it sends: a sentence for people."""
        if self.chosen is None:
            return "Nothing fits: this device would sit the round out."
        if not self.straggler.straggler:
            return f"Not a straggler for this task; it sends {self.chosen.label}."
        reasons = "; ".join(self.straggler.reasons)
        return f"A straggler for this task (a full update {reasons}); it sends {self.chosen.label}."

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why nothing richer was chosen: a sentence for each form passed over, and for classes not sent.

        Kinds that are barred for the same reason share a sentence.
        """
        names_of: dict[tuple[str, str], list[str]] = {}  # by reason, and form where it is not shared
        for candidate in takewhile(lambda candidate: candidate.misfits, self.candidates):
            form, name = ("", candidate.kind) if candidate.barred else (candidate.label, candidate.label)
            names = names_of.setdefault(("; ".join(candidate.misfits), form), [])
            if name not in names:
                names.append(name)
        passed = [f"{', '.join(names)} {why}" for (why, _), names in names_of.items()]
        if self.chosen and self.chosen.part:
            passed.append(f"{self.chosen.label} {self.chosen.part}")
        return tuple(passed)


class ChoicePolicy(Plugin, ABC):
    """How a device chooses among the updates that fit it; a frozen dataclass."""

    registry: ClassVar[dict[str, Any]] = {}
    about: ClassVar[str] = "own choice policy"

    @abstractmethod
    def pick(self, fitting: Sequence[Candidate], profile: DeviceProfile) -> Candidate | None:
        """One of the candidates that fit, which are in the offer's order of preference; None: sit out.

        Called only if there are some. Each has its predicted `cost`: seconds, energy_j, bytes_up, ...
        """


@dataclass(frozen=True)
class Richest(ChoicePolicy):
    """The first candidate in the offer's order of preference: what devices do by default."""

    name: ClassVar[str] = "richest"
    about: ClassVar[str] = "the first kind, in the order of the task, that fits"

    def pick(self, fitting: Sequence[Candidate], profile: DeviceProfile) -> Candidate | None:
        return fitting[0]


RICHEST = Richest()
ChoicePolicy.registry[Richest.name] = Richest


def policy_named(name: str) -> ChoicePolicy:
    """The policy of this name; the default for "". Raises KindError, which names those that there are."""
    if name and name not in ChoicePolicy.registry:
        registry.load_plugins()
    if name and name not in ChoicePolicy.registry:
        names = ", ".join(ChoicePolicy.registry)
        raise KindError(f"no choice policy is called {name!r}; there are {names}")
    policy: ChoicePolicy = ChoicePolicy.registry[name]() if name else RICHEST
    return policy


def choose(
    profile: DeviceProfile,
    kinds: Sequence[AnyStrategy],
    loads: Loads,
    remaining_s: float,
    forbidden_reason: ForbiddenReason = lambda _: "",
    unfetched_loads: Loads = NO_LOADS,
    policy: ChoicePolicy = RICHEST,
    upload_terms: UploadTerms | None = None,
) -> UpdateChoice:
    """The first kind, in the offer's order, that fits the memory and MARGIN of the remaining seconds.

    Another `policy` picks another of those that fit.

    Of a kind with several forms, the richest that fits. Class statistics are reduced if a form does not fit
    with them: first without second moments, then of as many classes as fit, and without any if nothing fits
    with these.

    `loads` are the workloads of the models that can be had here, by member; if the main model's is among
    them, the straggler is judged by it. `forbidden_reason` says why a form must not be trained here; empty
    when it may be. `unfetched_loads` are workloads of models that were not fetched, to say why they were not.
    `upload_terms`: None where each kind says how it is sent.
    """
    usable_s = MARGIN * remaining_s
    forms = [form for kind in kinds for form in kind.variants()]
    price = partial(priced, loads={**unfetched_loads, **loads}, profile=profile)
    if upload_terms is not None:
        price = partial(_priced_by, upload_terms, price, profile)
    judge = partial(_assessment, price, (loads, unfetched_loads), (profile, usable_s), forbidden_reason)
    candidates = tuple(_candidate(form, judge) for form in forms)
    if upload_terms is not None:
        candidates = _in_company(candidates, upload_terms.alone)
    fitting = [candidate for candidate in candidates if not candidate.misfits]
    chosen = _picked(policy, fitting, profile) if fitting else None
    if not fitting and any(kind.statistics is not None for kind in kinds):
        plain = tuple(kind_statistics.without_class_statistics(kind) for kind in kinds)
        if plain != tuple(kinds):
            return choose(
                profile, plain, loads, remaining_s, forbidden_reason, unfetched_loads, policy, upload_terms
            )
    return UpdateChoice(chosen, candidates, _verdict(profile, candidates, loads, usable_s))


def _picked(policy: ChoicePolicy, fitting: Sequence[Candidate], profile: DeviceProfile) -> Candidate | None:
    """One of the fitting candidates, or None. Raises OwnCodeError where an own policy fails."""
    with own_code(type(policy)):
        chosen = policy.pick(fitting, profile)
        if chosen is not None and not any(chosen is candidate for candidate in fitting):
            raise ValueError(f"{policy.name} picked {chosen!r:.80}, expected one of the candidates, or None")
        return chosen


def priced(form: AnyStrategy, loads: Loads, profile: DeviceProfile) -> Cost:
    """The predicted cost of a form of update on this device.

    Smaller models are taken to be as fast per operation as the main one, which was measured. Raises
    MissingGraph, and KeyError for a member that `loads` does not have.
    """
    load, main = loads[form.member], loads.get(MAIN)
    if form.member == MAIN or main is None:
        return kind_statistics.cost(form, with_measured_memory(load, profile.speed), profile)
    speed = speed_on_bundle(profile.speed, main, load)
    return kind_statistics.cost(form, with_measured_memory(load, speed), replace(profile, speed=speed))


def _priced_by(terms: UploadTerms, price: Price, profile: DeviceProfile, form: AnyStrategy) -> Cost:
    """As `priced`, with the bytes that the round's terms make of it. Raises UnsendableError too."""
    return with_upload(price(form), terms.bytes_up(form), profile)


def _in_company(candidates: tuple[Candidate, ...], alone: tuple[str, ...]) -> tuple[Candidate, ...]:
    """The candidates, of which those of kinds that are `alone` do not fit if others do."""
    if all(c.misfits or c.kind in alone for c in candidates):
        return candidates
    return tuple(replace(c, misfits=(ALONE,)) if c.kind in alone and not c.misfits else c for c in candidates)


def _verdict(
    profile: DeviceProfile, candidates: Sequence[Candidate], loads: Loads, usable_s: float
) -> StragglerVerdict:
    """Judged on a full update with the round's settings, or the usual ones if the round has none."""
    cost = next((c.cost for c in candidates if c.kind == USUAL.name), None)
    if MAIN not in loads:
        return StragglerVerdict(True, ("needs the main model, which was not fetched",))
    try:
        return classify(cost or priced(USUAL, loads, profile), profile.memory, usable_s)
    except MissingGraph as error:
        return StragglerVerdict(True, (str(error),))


def _candidate(form: AnyStrategy, judge: Judge) -> Candidate:
    """The form as it is if it fits, else with reduced class statistics if it then fits."""
    candidate = judge(form)
    if candidate.cost is None or not candidate.misfits:
        return candidate
    poorer = kind_statistics.without_moments(form)
    less = _candidate(poorer, judge) if poorer else _of_fewer_classes(candidate, judge)
    return less if less and not less.misfits else candidate


def _of_fewer_classes(candidate: Candidate, judge: Judge) -> Candidate | None:
    """With class statistics of as many classes as fit, by bisection; None if even one is too many."""
    best, fits, (over, _) = None, 0, candidate.classes
    while fits + 1 < over:
        most = (fits + over) // 2 if fits else 1
        part = judge(kind_statistics.with_most_classes(candidate.strategy, most))
        if part.misfits:
            over = most
        else:
            best, fits = part, most
    return best


def _assessment(
    price: Price,
    loads: tuple[Loads, Loads],
    limits: tuple[DeviceProfile, float],
    forbidden_reason: ForbiddenReason,
    form: AnyStrategy,
) -> Candidate:
    """The form, its cost, and why it does not fit; `limits` are the device and the seconds it may use."""
    here, unfetched = loads
    workload = here.get(form.member) or unfetched.get(form.member)
    if workload is None:
        model = f"the model {form.member}" if form.member else "the main model"
        return Candidate(form, None, (f"needs {model}, which is not here",))
    try:
        with own_code(type(form)):
            if unfit := unfit_reason(form, workload):
                return Candidate(form, None, (unfit,))
            if barred := forbidden_reason(form):
                return Candidate(form, None, (barred,), barred=True)
            cost = price(form)
    except (MissingGraph, UnsendableError, OwnCodeError) as error:
        return Candidate(form, None, (str(error),))
    profile, usable_s = limits
    lacks = misfit_reasons(cost, profile.memory, usable_s)
    if not lacks and form.member not in here:
        lacks = ("needs its own model, which was not fetched",)
    return Candidate(form, cost, lacks, kind_statistics.class_coverage(form, workload))
