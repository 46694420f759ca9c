"""The times at which an asked device downloads, computes and uploads, and the fate of its update.

No training happens here. A device is charged the seconds that the cost model predicts for it, times a factor
drawn for this round; `device.training.work` decides what it does with them, as on a real device. Work may be
interrupted: by hours in which the device is not available, and by a lost link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan

from device_runtime.device.selection.choose import (
    MAIN,
    RICHEST,
    ChoicePolicy,
    Loads,
    UpdateChoice,
    UploadTerms,
    choose,
)
from device_runtime.device.selection.resting import RestRule
from device_runtime.device.training.work import Assignment, WorkOutcome, train_richest
from device_runtime.profiles import DeviceProfile, Power
from device_runtime.simulation.history.records import LostReason
from device_runtime.strategies.interface.capabilities import SendsScalars
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.terms.dp_sgd import PrivacyLedger

from .virtual_worker import UNSPENT, VirtualWorker, privacy_refusal

MOST_WINDOWS = 100
"""The most periods of availability that one update may be spread over; then its device counts as lost."""


@dataclass(frozen=True)
class BusySeconds:
    """Seconds of an update's three parts. A share of the work is a share of their sum."""

    download_s: float
    compute_s: float
    upload_s: float

    @property
    def all_s(self) -> float:
        return self.download_s + self.compute_s + self.upload_s

    def first(self, share: float) -> BusySeconds:
        """The seconds of each part in the first `share` of the work."""
        left, spent = share * self.all_s, []
        for seconds in (self.download_s, self.compute_s, self.upload_s):
            spent.append(min(seconds, left))
            left -= spent[-1]
        return BusySeconds(*spent)


@dataclass
class InterruptedWork:
    """Computes when a device finishes work that begins at `now` and may be interrupted.

    `until(t)` says when the device becomes unavailable, `back(t)` when it is available again. The link is
    lost after the share `drop` of the work (nan: never) and is back `away_s` seconds later. `gaps` are the
    times (from, to) in which the device cannot be reached, in the order in which they begin.
    """

    now: float
    until: Callable[[float], float]
    back: Callable[[float], float]
    drop: float = nan
    away_s: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def moment(self, busy: BusySeconds, share: float = 1.0) -> float:
        """The time at which this share of the work is done; inf: never. Only computing needs no link."""
        done, before = share * busy.all_s, self.drop * busy.all_s
        if isnan(before) or before >= done:
            return self._after(self.now, done)
        loss_at = self._after(self.now, before)
        if loss_at == inf:
            return inf
        again = self.back(loss_at + self.away_s)
        self.gaps.append((loss_at, again))
        if again == inf:
            return inf
        computed = busy.download_s + busy.compute_s
        if before < busy.download_s or before >= computed:
            return self._after(again, done - before)
        trained = self._after(loss_at, min(done, computed) - before)
        return trained if done <= computed else self._after(max(trained, again), done - computed)

    def share_done(self, busy: BusySeconds) -> float:
        """The share of never-finished work that was done when the device left for the last time."""
        *earlier, (left, _) = self.gaps
        worked_s = left - self.now - sum(end - begin for begin, end in earlier)
        return min(1.0, max(0.0, worked_s / busy.all_s))

    def _after(self, now: float, seconds: float) -> float:
        """The time after `seconds` of work, which pauses while the device is unavailable; inf: never."""
        for _ in range(MOST_WINDOWS):
            left = self.until(now)
            if now + seconds <= left:
                return now + seconds
            seconds -= max(0.0, left - now)
            now = self.back(left)
            self.gaps.append((left, now))
            if now == inf:
                return inf
        return inf


@dataclass(frozen=True)
class RoundDraws:
    """The random draws for one device and round; see `profiles.fleets.groups.Disturbances`."""

    slowdown: float = 1.0
    uplink: float = 1.0
    downlink: float = 1.0
    crash: float = nan
    drop: float = nan
    away_s: float = 0.0


NO_INCIDENTS = RoundDraws()
"""No slowdown and no incident: all goes as predicted."""


@dataclass(frozen=True)
class AskConditions:
    """The circumstances in which a device is asked at `now`; `closes_at` is the deadline.

    down_bytes: gives the bytes that it must fetch before it trains this member of the family ("": the main
    model).
    latency_s: the time of each transfer in addition to that of its bytes.
    until, back: give the next time from a moment on at which it becomes unavailable, and available again.
    charge_j: the charge of its battery; inf: it is on mains.
    charge_w: the watts that charge the battery while it works.
    prefetched_bytes: bytes fetched while it waited to be asked: they cost energy, but no time of the round.
    ledger: the privacy spent so far by its samples.
    like: the form of the contribution that was accepted last, if the aggregator still knows it.
    policy: how the device chooses among the updates that fit.
    upload_terms: as in `choose`.
    rest: what is wanted of the device; None: it does not rest.
    """

    now: float
    closes_at: float
    down_bytes: Callable[[str], int]
    kinds: tuple[AnyStrategy, ...]
    draws: RoundDraws = NO_INCIDENTS
    latency_s: float = 0.0
    until: Callable[[float], float] = lambda _: inf
    back: Callable[[float], float] = lambda now: now
    charge_j: float = inf
    charge_w: float = 0.0
    prefetched_bytes: int = 0
    ledger: PrivacyLedger = UNSPENT
    like: AnyStrategy | None = None
    policy: ChoicePolicy = RICHEST
    upload_terms: UploadTerms | None = None
    rest: RestRule | None = None


@dataclass(frozen=True)
class Timeline:
    """The course of one asked device in virtual seconds; `fate`: why no update arrives, else None.

    member: the model that it fetched, completely if `fetched`.
    straggler: whether it is a straggler for this task.
    ends_at: when the update arrives or is lost, or the device reports that it sits out.
    back_at: when the device can be asked again.
    gaps: when it cannot be reached, (from, to).
    busy, bytes, joules, operations: what was really spent; `prefetched_bytes`, a part of `bytes_down`, before
    it was asked.
    """

    outcome: WorkOutcome
    fate: LostReason | None
    began_s: float
    ends_at: float
    back_at: float
    gaps: tuple[tuple[float, float], ...]
    busy: BusySeconds
    bytes_down: int
    bytes_up: int
    energy_j: float
    flops: float
    member: str
    fetched: bool
    straggler: bool
    power: Power
    prefetched_bytes: int = 0
    ledger: PrivacyLedger = UNSPENT

    def until(self, now: float) -> Timeline:
        """The timeline with only what was spent until `now`; pauses are spread evenly over the work."""
        whole = self.busy
        spent = whole.first(_ratio(now - self.began_s, self.ends_at - self.began_s))
        waiting_s = whole.download_s - spent.download_s + whole.upload_s - spent.upload_s
        saved_j = waiting_s * self.power.idle_w + (whole.compute_s - spent.compute_s) * self.power.load_w
        fetched = self.bytes_down - self.prefetched_bytes
        return replace(
            self,
            busy=spent,
            bytes_down=self.prefetched_bytes + _part(fetched, spent.download_s, whole.download_s),
            bytes_up=_part(self.bytes_up, spent.upload_s, whole.upload_s),
            energy_j=self.energy_j - saved_j,
            flops=self.flops * _ratio(spent.compute_s, whole.compute_s),
        )


def timeline(profile: DeviceProfile, loads: Loads, terms: AskConditions) -> Timeline:
    """The timeline of an asked device with this profile and its learnt corrections; a pure function.

    Of a family it fetches the model that it would choose before the download, and then trains no other. A
    crash of its process, or an empty battery, loses the work. A lost link delays the update. A device that
    becomes unavailable (off the charger, off the network) continues when it is available again.
    """
    draws, power = terms.draws, profile.power
    plan = None
    if len(loads) > 1 or terms.rest:
        samples = loads[MAIN].samples
        plan = choose(
            profile,
            terms.kinds,
            loads,
            terms.closes_at - terms.now,
            lambda form: privacy_refusal(terms.ledger, form, samples),
            policy=terms.policy,
            upload_terms=terms.upload_terms,
        )
    if plan and terms.rest and (why := terms.rest.reason(plan, loads[MAIN])):
        return _rested(plan, why, profile, terms)
    member = plan.chosen.strategy.member if plan and plan.chosen else MAIN
    down_bytes, load = terms.down_bytes(member), loads[member]
    here = {member: replace(load, download_bytes=0) if load.download_bytes else load}
    download_s = terms.latency_s + down_bytes / (profile.bandwidth.down * draws.downlink)
    worker = VirtualWorker(profile, here, terms.now + download_s, draws.slowdown, terms.ledger)
    assignment = Assignment(
        terms.kinds, 0, terms.closes_at, policy=terms.policy, upload_terms=terms.upload_terms
    )
    outcome = train_richest(worker, profile, assignment)
    chosen, bytes_up, upload_s = outcome.plan.chosen, 0, 0.0
    if chosen is not None and chosen.cost is not None:
        first, strategy = chosen.cost.bytes_up, chosen.strategy
        alike = strategy == terms.like and strategy.statistics is None and terms.upload_terms is None
        if alike and isinstance(strategy, SendsScalars):
            bytes_up = strategy.repeat_upload_bytes(first)
        else:
            bytes_up = first
        upload_s = terms.latency_s + bytes_up / (profile.bandwidth.up * draws.uplink)
    whole = busy = BusySeconds(download_s, outcome.train_time_s, upload_s)
    share = min(1.0 if isnan(draws.crash) else draws.crash, _powered(whole, power, terms))
    course = InterruptedWork(terms.now, terms.until, terms.back, draws.drop, draws.away_s)
    ends_at = back_at = course.moment(whole, share)
    fate: LostReason | None = "sat out" if chosen is None else None
    if ends_at == inf:
        fate, ends_at, share = "dropped out", course.gaps[-1][0], course.share_done(whole)
    elif share < 1.0:
        fate, back_at = "crashed", terms.back(ends_at + draws.away_s)
        course.gaps.append((ends_at, back_at))
    if share < 1.0:
        busy = whole.first(share)
    came_down = _part(down_bytes, busy.download_s, whole.download_s)
    waited_s = busy.download_s + busy.upload_s + terms.prefetched_bytes / profile.bandwidth.down
    return Timeline(
        outcome,
        fate,
        terms.now,
        ends_at,
        back_at,
        tuple(course.gaps),
        busy,
        bytes_down=terms.prefetched_bytes + came_down,
        bytes_up=_part(bytes_up, busy.upload_s, whole.upload_s),
        energy_j=waited_s * power.idle_w + busy.compute_s * power.load_w,
        flops=worker.flops * _ratio(busy.compute_s, whole.compute_s),
        member=member,
        fetched=came_down == down_bytes,
        straggler=(plan or outcome.plan).straggler.straggler,
        power=power,
        prefetched_bytes=terms.prefetched_bytes,
        ledger=worker.ledger,
    )


def _rested(plan: UpdateChoice, why: str, profile: DeviceProfile, terms: AskConditions) -> Timeline:
    """The timeline of a device that rests: it answers at once, and fetches nothing but the bundle before."""
    return Timeline(
        WorkOutcome(UpdateChoice(None, (), plan.straggler), None, gave_up=(why,)),
        "rested",
        terms.now,
        ends_at=terms.now,
        back_at=terms.now,
        gaps=(),
        busy=BusySeconds(0.0, 0.0, 0.0),
        bytes_down=terms.prefetched_bytes,
        bytes_up=0,
        energy_j=terms.prefetched_bytes / profile.bandwidth.down * profile.power.idle_w,
        flops=0.0,
        member=MAIN,
        fetched=False,
        straggler=plan.straggler.straggler,
        power=profile.power,
        prefetched_bytes=terms.prefetched_bytes,
        ledger=terms.ledger,
    )


def _powered(busy: BusySeconds, power: Power, terms: AskConditions) -> float:
    """The share of the work, in (0, 1], that the battery lasts for."""
    if terms.charge_j == inf:
        return 1.0
    left, done = terms.charge_j, 0.0
    parts = (
        (busy.download_s, power.idle_w),
        (busy.compute_s, power.load_w),
        (busy.upload_s, power.idle_w),
    )
    for seconds, watts in parts:
        net_w = watts - terms.charge_w
        if net_w * seconds > left:
            return (done + left / net_w) / busy.all_s
        left -= net_w * seconds
        done += seconds
    return 1.0


def _part(size: int, spent_s: float, whole_s: float) -> int:
    """The bytes of a transfer that were sent after `spent_s` of its seconds."""
    return round(size * _ratio(spent_s, whole_s))


def _ratio(part: float, whole: float) -> float:
    return part / whole if part < whole else 1.0
