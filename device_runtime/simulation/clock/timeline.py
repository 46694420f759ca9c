"""What one asked device does, and when: the device's own choosing and stepping down, on a virtual clock.

No training happens here. A device is charged the seconds that the cost model predicts for it, times what was
drawn for this round; what it does with them is decided by `client.training.work`, as on a real device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan

from device_runtime.client.selection.choose import MAIN, Loads, choose
from device_runtime.client.training.work import Assignment, WorkOutcome, perform
from device_runtime.profiles import DeviceProfile, Power
from device_runtime.simulation.records import Lost
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.terms.dp_sgd import PrivacyLedger

from .virtual_worker import UNSPENT, VirtualWorker, barred

# FROM course: When work is done that is interrupted: by hours in which a device is away, by a link that is
# lost.

MOST_WINDOWS = 100
"""Spells of availability that one update may be spread over; then the device is given up."""


@dataclass(frozen=True)
class BusySeconds:
    """Seconds of an update's three parts. Its work is all of them; a share of it is a share of their sum."""

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
class WorkCourse:
    """One device at work from `now` on. `until(t)` says when it goes away, `back(t)` when it is there again.

    The link is lost after the share `drop` of the work (nan: it is not) and back `away_s` seconds later.
    `gaps` are the times in which nobody hears of the device, (from, to), in the order in which they begin.
    """

    now: float
    until: Callable[[float], float]
    back: Callable[[float], float]
    drop: float = nan
    away_s: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def moment(self, busy: BusySeconds, share: float = 1.0) -> float:
        """When this share of the work is done; inf: never. Without a link only computing goes on."""
        done, before = share * busy.all_s, self.drop * busy.all_s
        if isnan(before) or before >= done:
            return self._after(self.now, done)
        lost = self._after(self.now, before)
        if lost == inf:
            return inf
        again = self.back(lost + self.away_s)
        self.gaps.append((lost, again))
        if again == inf:
            return inf
        computed = busy.download_s + busy.compute_s
        if before < busy.download_s or before >= computed:
            return self._after(again, done - before)
        trained = self._after(lost, min(done, computed) - before)
        return trained if done <= computed else self._after(max(trained, again), done - computed)

    def share_done(self, busy: BusySeconds) -> float:
        """Of work that is never finished: what was done when the device went for the last time."""
        *earlier, (left, _) = self.gaps
        worked_s = left - self.now - sum(end - begin for begin, end in earlier)
        return min(1.0, max(0.0, worked_s / busy.all_s))

    def _after(self, now: float, seconds: float) -> float:
        """When so many seconds of work are done, pausing while the device is not available; inf: never."""
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
class Luck:
    """What was drawn for one device and round; see `profiles.fleets.scenarios.Chances`."""

    slowdown: float = 1.0
    uplink: float = 1.0
    downlink: float = 1.0
    crash: float = nan
    drop: float = nan
    away_s: float = 0.0


LUCK = Luck()
"""As predicted, and nothing happens."""


@dataclass(frozen=True)
class AskSchedule:
    """When a device is asked: `closes_s` is the deadline, `down_bytes` what it must fetch first to train this
    member of the family, or the main model (""); `latency_s` what each transfer takes beside its bytes.

    `until` and `back` tell of its availability from a moment on: when it ends, and when the next begins.
    `charge_j` is what its battery holds (inf: it is on mains), `charge_w` what it gains while it works.
    `lobby_bytes` were fetched while it waited to be asked: they cost energy, and no time of the round.
    `ledger` is what was spent of its samples' privacy. `like` is the form of the contribution that was
    accepted last, if the aggregator still knows it.
    """

    now: float
    closes_s: float
    down_bytes: Callable[[str], int]
    kinds: tuple[AnyStrategy, ...]
    luck: Luck = LUCK
    latency_s: float = 0.0
    until: Callable[[float], float] = lambda _: inf
    back: Callable[[float], float] = lambda now: now
    charge_j: float = inf
    charge_w: float = 0.0
    lobby_bytes: int = 0
    ledger: PrivacyLedger = UNSPENT
    like: AnyStrategy | None = None


@dataclass(frozen=True)
class Timeline:
    """`lost` says how no update came of it; None: one arrives. Times are in virtual seconds.

    `member` is the model that it fetched, all of it if `fetched`; `straggler`: as it is judged by the task.
    `ends_s`: when it arrives, or is lost, or the device says that it sits out; `back_s`: when the device can
    be asked again; `gaps`: when nothing can be heard of it, (from, to). What `busy` says, bytes, joules and
    operations are what was spent.
    """

    outcome: WorkOutcome
    lost: Lost | None
    ends_s: float
    back_s: float
    gaps: tuple[tuple[float, float], ...]
    busy: BusySeconds
    bytes_down: int
    bytes_up: int
    energy_j: float
    flops: float
    member: str
    fetched: bool
    straggler: bool
    ledger: PrivacyLedger = UNSPENT


def timeline(profile: DeviceProfile, loads: Loads, asked: AskSchedule) -> Timeline:
    """What a device of this profile, with the corrections that it has learnt, does. A pure function.

    Of a family it fetches the model that it would train as things stand, and trains no other then.
    A process that dies takes its work with it, and so does a battery that runs empty. A link that is lost
    delays what was trained. A device that is no longer available (off the charger, off the network) goes on
    when it is again.
    """
    luck, power = asked.luck, profile.power
    plan = None
    if len(loads) > 1:
        samples = loads[MAIN].samples
        plan = choose(
            profile,
            asked.kinds,
            loads,
            asked.closes_s - asked.now,
            lambda form: barred(asked.ledger, form, samples),
        )
    member = plan.chosen.strategy.member if plan and plan.chosen else MAIN
    down_bytes, load = asked.down_bytes(member), loads[member]
    here = {member: replace(load, download_bytes=0) if load.download_bytes else load}
    download_s = asked.latency_s + down_bytes / (profile.bandwidth.down * luck.downlink)
    worker = VirtualWorker(profile, here, asked.now + download_s, luck.slowdown, asked.ledger)
    outcome = perform(worker, profile, Assignment(asked.kinds, 0, asked.closes_s))
    chosen, bytes_up, upload_s = outcome.plan.chosen, 0, 0.0
    if chosen is not None and chosen.cost is not None:
        first, strategy = chosen.cost.bytes_up, chosen.strategy
        alike = strategy == asked.like and strategy.statistics is None
        bytes_up = strategy.again(first) if alike else first
        upload_s = asked.latency_s + bytes_up / (profile.bandwidth.up * luck.uplink)
    whole = busy = BusySeconds(download_s, outcome.train_time_s, upload_s)
    share = min(1.0 if isnan(luck.crash) else luck.crash, _powered(whole, power, asked))
    course = WorkCourse(asked.now, asked.until, asked.back, luck.drop, luck.away_s)
    ends_s = back_s = course.moment(whole, share)
    lost: Lost | None = "sat out" if chosen is None else None
    if ends_s == inf:
        lost, ends_s, share = "dropped out", course.gaps[-1][0], course.share_done(whole)
    elif share < 1.0:
        lost, back_s = "crashed", asked.back(ends_s + luck.away_s)
        course.gaps.append((ends_s, back_s))
    if share < 1.0:
        busy = whole.first(share)
    came_down = _part(down_bytes, busy.download_s, whole.download_s)
    waited_s = busy.download_s + busy.upload_s + asked.lobby_bytes / profile.bandwidth.down
    return Timeline(
        outcome,
        lost,
        ends_s,
        back_s,
        tuple(course.gaps),
        busy,
        bytes_down=asked.lobby_bytes + came_down,
        bytes_up=_part(bytes_up, busy.upload_s, whole.upload_s),
        energy_j=waited_s * power.idle_w + busy.compute_s * power.load_w,
        flops=worker.flops * _ratio(busy.compute_s, whole.compute_s),
        member=member,
        fetched=came_down == down_bytes,
        straggler=(plan or outcome.plan).straggler.straggler,
        ledger=worker.ledger,
    )


def _powered(busy: BusySeconds, power: Power, asked: AskSchedule) -> float:
    """The share of the work after which the battery is empty, in (0, 1]."""
    if asked.charge_j == inf:
        return 1.0
    left, done = asked.charge_j, 0.0
    parts = (
        (busy.download_s, power.idle_w),
        (busy.compute_s, power.load_w),
        (busy.upload_s, power.idle_w),
    )
    for seconds, watts in parts:
        net_w = watts - asked.charge_w
        if net_w * seconds > left:
            return (done + left / net_w) / busy.all_s
        left -= net_w * seconds
        done += seconds
    return 1.0


def _part(size: int, spent_s: float, whole_s: float) -> int:
    """Bytes of a transfer of this size that have gone after `spent_s` of its seconds."""
    return round(size * _ratio(spent_s, whole_s))


def _ratio(part: float, whole: float) -> float:
    return part / whole if part < whole else 1.0
