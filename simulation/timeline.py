"""What one asked device does, and when: the device's own choosing and stepping down, on a virtual clock.

No training happens here. A device is charged the seconds that the cost model predicts for it, times what was
drawn for this round; what it does with them is decided by `device_runtime.work`, as on a real device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isnan, nan

from device_runtime.choose import MAIN, Candidate, Loads, choose
from device_runtime.work import Assignment, Outcome, perform
from profiles import DeviceProfile, Power
from strategies.accountant import PrivacyError
from strategies.kind import AnyStrategy, Contribution, OutOfTime, Run
from strategies.privacy import Ledger, round_of, settings_of

from .course import Busy, Course
from .records import Lost

STEPS = (0.01, *(tenth / 10 for tenth in range(1, 10)))
"""The shares of an update after which a device looks at its clock: it sees early that it will be late."""


@dataclass(frozen=True)
class Luck:
    """What was drawn for one device and round; see `profiles.fleets.Chances`."""

    slowdown: float = 1.0
    uplink: float = 1.0
    downlink: float = 1.0
    crash: float = nan
    drop: float = nan
    away_s: float = 0.0


UNSPENT = Ledger()
LUCK = Luck()
"""As predicted, and nothing happens."""


@dataclass(frozen=True)
class Asked:
    """When a device is asked: `closes_s` is the deadline, `down_bytes` what it must fetch first to train this
    member of the family, or the main model (""); `latency_s` what each transfer takes beside its bytes.

    `until` and `back` tell of its availability from a moment on: when it ends, and when the next begins.
    `charge_j` is what its battery holds (inf: it is on mains), `charge_w` what it gains while it works.
    `lobby_bytes` were fetched while it waited to be asked: they cost energy, and no time of the round.
    `ledger` is what was spent of its samples' privacy.
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
    ledger: Ledger = UNSPENT


@dataclass(frozen=True)
class Timeline:
    """`lost` says how no update came of it; None: one arrives. Times are in virtual seconds.

    `member` is the model that it fetched, all of it if `fetched`; `straggler`: as it is judged by the task.
    `ends_s`: when it arrives, or is lost, or the device says that it sits out; `back_s`: when the device can
    be asked again; `gaps`: when nothing can be heard of it, (from, to). What `busy` says, bytes, joules and
    operations are what was spent.
    """

    outcome: Outcome
    lost: Lost | None
    ends_s: float
    back_s: float
    gaps: tuple[tuple[float, float], ...]
    busy: Busy
    bytes_down: int
    bytes_up: int
    energy_j: float
    flops: float
    member: str
    fetched: bool
    straggler: bool
    ledger: Ledger = UNSPENT


class VirtualWorker:
    """See `device_runtime.work.Worker`: takes the time that the work takes, and makes nothing.

    `believed` is the device as it believes itself to be, `slowdown` its seconds over those predicted without
    what it has learnt.
    """

    def __init__(
        self, believed: DeviceProfile, loads: Loads, now: float, slowdown: float, ledger: Ledger = UNSPENT
    ) -> None:
        """`ledger`: what was spent of its samples' privacy; it goes on with what its training spends."""
        self.ledger = ledger
        self.loads = loads
        self.peak_bytes = 0
        self.now = now
        self.flops = 0.0
        self._believed, self._slowdown = believed, slowdown

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    def _clock(self) -> float:
        return self.now

    def begin(self) -> None:
        self.peak_bytes = self._believed.memory.resident_bytes

    def barred(self, strategy: AnyStrategy) -> str:
        return barred(self.ledger, strategy, self._samples)

    def spent(self, strategy: AnyStrategy) -> float:
        dp = settings_of(strategy)
        return nan if dp is None else self.ledger.epsilon(dp.delta)

    @property
    def _samples(self) -> int:
        return next(iter(self.loads.values())).samples

    def train(self, chosen: Candidate, seed: int, deadline: float) -> tuple[AnyStrategy, Contribution]:
        """The form that there was time for; of what came of it, all but the tensors.

        Raises OutOfTime when a device would find out that the deadline will be missed.
        """
        strategy, load = chosen.strategy, self.loads[chosen.strategy.member]
        if event := round_of(strategy, load.samples):
            self.ledger = self.ledger.after(event)
        cost = chosen.cost or strategy.cost(load, self._believed)
        self.peak_bytes = max(self.peak_bytes, cost.peak_memory_bytes)
        predicted_s = cost.compute_s / self._believed.corrections.get(chosen.kind, 1.0)
        began, seconds = self.now, predicted_s * self._slowdown
        form, share = strategy, 1.0
        try:
            if began + seconds > deadline:
                form, share = self._hurried(strategy, seconds, Run(seed, "", self._clock, deadline))
        except OutOfTime:
            self.flops += cost.flops * _ratio(self.now - began, seconds) if seconds else 0.0
            raise
        if form is not strategy:
            share = max(share, form.cost(load, self._believed).flops / cost.flops)
        self.now = began + share * seconds
        self.flops += share * cost.flops
        return form, Contribution(chosen.kind, {}, load.samples, nan, form.form)

    def _hurried(self, strategy: AnyStrategy, seconds: float, run: Run) -> tuple[AnyStrategy, float]:
        """The form that a device ends with that has no time for all, and the share after which it does.

        It sees that at one of its looks at the clock. What is done by then may be worth something; else it
        goes on to the least that is, if there is time for that. See `strategies.local_training`.
        """
        began, aim = self.now, 1.0
        for done in STEPS:
            if done >= aim:
                break
            self.now = began + done * seconds
            try:
                run.pace(began, done / aim)
            except OutOfTime:
                if aim < 1.0:
                    raise
                if form := strategy.stopped(done):
                    return form, done
                aim = _least(strategy, done)
                if aim == 1.0:
                    raise
                run.pace(began, done / aim)
        least = strategy.stopped(aim)
        return (strategy, 1.0) if least is None else (least, (self.now - began) / seconds)


def barred(ledger: Ledger, strategy: AnyStrategy, samples: int) -> str:
    """Why a device with this past must not train this form; empty when it may."""
    dp = settings_of(strategy)
    if dp is None or (event := round_of(strategy, samples)) is None:
        return ""
    try:
        ledger.check(event, dp.limit)
    except PrivacyError as error:
        return str(error)
    return ""


def _least(strategy: AnyStrategy, done: float) -> float:
    """The least share of the work, to a hundredth, after which something of it can be sent."""
    if strategy.stopped(0.99) is None:
        return 1.0
    return next(n / 100 for n in range(round(100 * done), 100) if strategy.stopped(n / 100))


def timeline(profile: DeviceProfile, loads: Loads, asked: Asked) -> Timeline:
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
        bytes_up = chosen.cost.bytes_up
        upload_s = asked.latency_s + bytes_up / (profile.bandwidth.up * luck.uplink)
    whole = busy = Busy(download_s, outcome.train_time_s, upload_s)
    share = min(1.0 if isnan(luck.crash) else luck.crash, _powered(whole, power, asked))
    course = Course(asked.now, asked.until, asked.back, luck.drop, luck.away_s)
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


def _powered(busy: Busy, power: Power, asked: Asked) -> float:
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
