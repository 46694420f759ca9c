"""An owner's rules: when a device may work, and what tasks may ask for. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from device_runtime.broker.wire.messages import Blob, Masks
from device_runtime.device.errors import PolicyError

if TYPE_CHECKING:
    from device_runtime.strategies.interface.kind import AnyStrategy


SHORTEST = 16
"""Least number of hex digits that name a bundle: 64 bits."""
DIGEST = re.compile(rf"[0-9a-f]{{{SHORTEST},64}}")
LEAST_GROUP = 2
"""The fewest devices of a sum that hides anything."""


@dataclass(frozen=True)
class AllowList:
    """What the owner lets a task ask for. Empty fields, and None, allow everything.

    kinds: names of kinds of update. bundles: sha256 of bundles, at least their first hex digits.
    most_scalars: of a zeroth-order round. smallest_count: samples of a class, below which nothing may be sent
    by class; with it no feature maps of single samples are sent either. mask_helpers: the mask helpers of
    rounds with masks, each as NAME=KEY with the key in hex; a round must have all of them, and no other.
    only_masked: nothing is trained in rounds without masks.
    """

    kinds: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    most_scalars: int | None = None
    smallest_count: int | None = None
    mask_helpers: tuple[str, ...] = ()
    only_masked: bool = False

    def __post_init__(self) -> None:
        for name in ("kinds", "bundles", "mask_helpers"):
            if isinstance(getattr(self, name), str):
                raise PolicyError(f"{name} is a text, expected a tuple of texts")
        for bundle in self.bundles:
            if not DIGEST.fullmatch(bundle):
                says = f"expected {SHORTEST} to 64 hex digits in lower case"
                raise PolicyError(f"{bundle!r} is not the sha256 of a bundle: {says}")

    def bars(self, strategy: AnyStrategy) -> str:
        """Why this form of an update must not be trained; empty when it may be."""
        from device_runtime.strategies.interface import capabilities

        if self.kinds and strategy.name not in self.kinds:
            return f"may not be sent: the owner allows {', '.join(self.kinds)}"
        if self.most_scalars is not None and capabilities.scalars(strategy) > self.most_scalars:
            return f"sends {capabilities.scalars(strategy)} scalars, the owner allows {self.most_scalars}"
        least = self.smallest_count
        if least is None:
            return ""
        if strategy.traits.of_single_samples:
            return f"sends feature maps of single samples, the owner allows none of fewer than {least}"
        count = capabilities.smallest_class(strategy)
        if count is None or count >= least:
            return ""
        return f"sends classes of {count} samples, the owner allows {least} or more"

    def refuses(self, bundles: Iterable[Blob]) -> str:
        """Why these bundles are refused; empty when they may be fetched and run."""
        for bundle in bundles if self.bundles else ():
            if not bundle.hex.startswith(self.bundles):
                return f"bundle {bundle.hex} is not among those that the owner allows"
        return ""

    def refuses_masks(self, masks: Masks | None) -> str:
        """Why a round with these masks is passed over; empty when it may be worked on. None: no masks."""
        if masks is None:
            clear = "the aggregator would see this device's own update, the owner allows masked ones only"
            return clear if self.only_masked else ""
        if self.only_masked and masks.min_group < LEAST_GROUP:
            return f"its masked sums may be of {masks.min_group} device, the owner allows masked updates only"
        helpers = {str(helper) for helper in masks.helpers}
        if self.mask_helpers and helpers != set(self.mask_helpers):
            named, allowed = (_helpers(names) for names in (sorted(helpers), self.mask_helpers))
            return f"its updates are masked for {named}, the owner allows {allowed}"
        return ""

    def rules(self) -> Iterator[tuple[str, str]]:
        """Name and content of each rule, for people."""
        if self.kinds:
            yield "kinds", f"only {', '.join(self.kinds)}"
        if self.bundles:
            yield "bundles", f"only {', '.join(bundle[:SHORTEST] for bundle in self.bundles)}"
        if self.most_scalars is not None:
            yield "scalars", f"at most {self.most_scalars} in a zeroth-order round"
        if self.smallest_count is not None:
            yield "classes", f"nothing of classes with fewer than {self.smallest_count} samples"
        if self.only_masked:
            yield "masked", "only masked updates"
        if self.mask_helpers:
            yield "helpers", f"masks only for {_helpers(self.mask_helpers)}"


def _helpers(named: Iterable[str]) -> str:
    """Mask helpers for people, with the beginnings of their keys."""
    parts = [text.partition("=") for text in named]
    return ", ".join(f"{name}={key[:SHORTEST]}" for name, _, key in parts)


ANYTHING = AllowList()


T = TypeVar("T")

BATTERY_MARGIN = 5.0
"""Percentage points to charge before work resumes that a low battery stopped.

None on mains power, where a battery may be kept from ever being fuller.
"""
COOLING = 3.0
"""Degrees Celsius to lose before work resumes that heat stopped."""
QUIET = 0.8
"""Share of the limit below which the load of others must fall before work resumes that it stopped."""


@dataclass(frozen=True)
class DayWindow:
    """A part of the day in local time, in minutes since midnight.

    It passes midnight if it ends before it begins, and is all day if both are the same.
    """

    start: int
    end: int

    @classmethod
    def of(cls, text: str) -> DayWindow:
        """From "22:00-06:30"; 24:00 is midnight. Raises PolicyError."""
        match = re.fullmatch(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)", text.strip())
        if match:
            hour, minute, to_hour, to_minute = map(int, match.groups())
            start, end = 60 * hour + minute, 60 * to_hour + to_minute
            if max(minute, to_minute) < 60 and max(start, end) <= 24 * 60:
                return cls(start, end)
        raise PolicyError(f"{text!r} is not a part of the day: expected 22:00-06:30")

    def holds(self, minute: int) -> bool:
        """Whether this minute of the day is in it; its end is not."""
        start, end = self.start % (24 * 60), self.end % (24 * 60)
        return start <= minute < end if start < end else minute >= start or minute < end

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02d}:{minute % 60:02d}" for minute in (self.start, self.end))


@dataclass(frozen=True)
class Policy:
    """An owner's rules. Without any, a device may always work, on whatever is asked for (`allowed`).

    `battery_above` in percent, for devices that have a battery; `below_c` in degrees Celsius, of the hottest
    sensor; `others_below`: percent of this machine's processor time that others use; `daily_bytes` sent and
    received in a local day. `unknown_allows`: whether a rule allows work if its condition cannot be read
    here.
    """

    mains: bool = False
    battery_above: float | None = None
    below_c: float | None = None
    unmetered: bool = False
    windows: tuple[DayWindow, ...] = ()
    others_below: float | None = None
    daily_bytes: int | None = None
    unknown_allows: bool = False
    allowed: AllowList = ANYTHING


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A value and its source; None if it is not known, and then `source` says why."""

    value: T | None
    source: str


@dataclass(frozen=True)
class Charge:
    """Charge of the battery; `percent` is None if there is none."""

    percent: float | None
    plugged: bool


NOT_LOOKED_AT: Reading[float] = Reading(None, "not looked at")


@dataclass(frozen=True)
class Conditions:
    """This machine now. `when` is local time; `paused` says since when it is paused by hand, if it is."""

    when: datetime
    paused: str = ""
    charge: Reading[Charge] = Reading(None, NOT_LOOKED_AT.source)
    celsius: Reading[float] = NOT_LOOKED_AT
    metered: Reading[bool] = Reading(None, NOT_LOOKED_AT.source)
    others: Reading[float] = NOT_LOOKED_AT
    bytes_today: int = 0


@dataclass(frozen=True)
class Rule:
    """The verdict of one rule. `network`: it concerns the link, so nothing large is sent either."""

    name: str
    allows: bool
    why: str
    network: bool = False


@dataclass(frozen=True)
class RuleVerdict:
    """The verdicts of all rules, in the order of the policy."""

    rules: tuple[Rule, ...] = ()

    @property
    def allows(self) -> bool:
        return not self.failed_rules

    @property
    def quiet(self) -> bool:
        """Whether a network rule says no."""
        return any(rule.network and not rule.allows for rule in self.rules)

    @property
    def failed_rules(self) -> frozenset[str]:
        """Names of the rules that say no: pass them to the next judgement."""
        return frozenset(rule.name for rule in self.rules if not rule.allows)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(rule.why for rule in self.rules if not rule.allows)


def judge(policy: Policy, now: Conditions, refusals: frozenset[str] = frozenset()) -> RuleVerdict:
    """The verdicts of all rules; those that said no the last time (`refusals`) need a margin to say yes."""
    return RuleVerdict(tuple(_rules(policy, now, refusals)))


def _rules(policy: Policy, now: Conditions, refusals: frozenset[str]) -> Iterator[Rule]:
    if now.paused:
        yield Rule("paused", False, now.paused)
    if policy.windows:
        yield _window(policy.windows, now.when)
    if policy.mains:
        yield _mains(now.charge, policy.unknown_allows)
    if policy.battery_above is not None:
        drains = now.charge.value is None or not now.charge.value.plugged
        level = policy.battery_above + (BATTERY_MARGIN if "battery" in refusals and drains else 0.0)
        yield _battery(min(level, 100.0), now.charge, policy.unknown_allows)
    if policy.below_c is not None:
        most = policy.below_c - (COOLING if "temperature" in refusals else 0.0)
        yield _below("temperature", now.celsius, most, "°C", policy.unknown_allows)
    if policy.others_below is not None:
        most = policy.others_below * (QUIET if "idle" in refusals else 1.0)
        yield _below("idle", now.others, most, "% of the processor used by others", policy.unknown_allows)
    if policy.unmetered:
        yield _unmetered(now.metered, policy.unknown_allows)
    if policy.daily_bytes is not None:
        spent = f"{now.bytes_today / 1e6:.2f} of {policy.daily_bytes / 1e6:g} MB sent and received today"
        yield Rule("traffic", now.bytes_today < policy.daily_bytes, spent, network=True)
    for name, content in policy.allowed.rules():
        yield Rule(name, True, content)


def _window(windows: tuple[DayWindow, ...], when: datetime) -> Rule:
    inside = any(window.holds(60 * when.hour + when.minute) for window in windows)
    hours = ", ".join(map(str, windows))
    return Rule("window", inside, f"it is {when:%H:%M}, {'in' if inside else 'outside'} {hours}")


def _mains(charge: Reading[Charge], unknown_allows: bool) -> Rule:
    if charge.value is None:
        return _unknown("mains", charge.source, unknown_allows)
    what = "on mains power" if charge.value.plugged else "on battery power"
    return Rule("mains", charge.value.plugged, f"{what} ({charge.source})")


def _battery(level: float, charge: Reading[Charge], unknown_allows: bool) -> Rule:
    if charge.value is None:
        return _unknown("battery", charge.source, unknown_allows)
    percent = charge.value.percent
    if percent is None:
        return Rule("battery", True, charge.source)
    compared = "is at least" if percent >= level else "is below"
    return Rule("battery", percent >= level, f"battery at {percent:.0f}% {compared} {level:g}%")


def _below(name: str, reading: Reading[float], most: float, unit: str, unknown_allows: bool) -> Rule:
    if reading.value is None:
        return _unknown(name, reading.source, unknown_allows)
    below = reading.value < most
    relation = "below" if below else "not below"
    return Rule(name, below, f"{reading.value:.0f} {unit} is {relation} {most:g} ({reading.source})")


def _unmetered(metered: Reading[bool], unknown_allows: bool) -> Rule:
    if metered.value is None:
        return Rule(
            "unmetered", unknown_allows, f"unmetered: not known here ({metered.source})", network=True
        )
    what = "metered" if metered.value else "unmetered"
    return Rule("unmetered", not metered.value, f"the network is {what} ({metered.source})", network=True)


def _unknown(name: str, why: str, allows: bool) -> Rule:
    return Rule(name, allows, f"{name}: not known here ({why})")
