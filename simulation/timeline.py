"""What one asked device does, and when: the device's own choosing and stepping down, on a virtual clock.

No training happens here. A device is charged the seconds that the cost model predicts for it, times what was
drawn for this round; what it does with them is decided by `device_runtime.work`, as on a real device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan, nan

from device_runtime.choose import Candidate
from device_runtime.work import Assignment, Outcome, perform
from profiles import DeviceProfile, Workload
from strategies.kind import AnyStrategy, Contribution, OutOfTime, Run

from .records import Lost

STEPS = (0.01, *(tenth / 10 for tenth in range(1, 10)))
"""The shares of an update after which a device looks at its clock: it sees early that it will be late."""
WILL_S = 45.0
"""Seconds until the broker says that a device is gone: one and a half keep-alives of 30 s."""
MOST_WINDOWS = 100
"""Spells of availability that one update may be spread over; then the device is given up."""


@dataclass(frozen=True)
class Luck:
    """What was drawn for one device and round; see `profiles.fleets.Chances`."""

    slowdown: float = 1.0
    uplink: float = 1.0
    downlink: float = 1.0
    crash: float = nan
    drop: float = nan
    away_s: float = 0.0


LUCK = Luck()
"""As predicted, and nothing happens."""


@dataclass(frozen=True)
class Asked:
    """When a device is asked: `closes_s` is the deadline, `down_bytes` what it must fetch first, `latency_s`
    what each transfer takes beside its bytes.

    `until` and `back` tell of its availability from a moment on: when it ends, and when the next begins.
    """

    now: float
    closes_s: float
    down_bytes: int
    kinds: tuple[AnyStrategy, ...]
    luck: Luck = LUCK
    latency_s: float = 0.0
    until: Callable[[float], float] = lambda _: inf
    back: Callable[[float], float] = lambda now: now


@dataclass(frozen=True)
class Timeline:
    """`lost` says how no update came of it; None: one arrives. Times are in virtual seconds.

    `ends_s`: when it arrives, or is lost, or the device says that it sits out; `back_s`: when the device can
    be asked again. Seconds, bytes, joules and operations are what was spent.
    """

    outcome: Outcome
    lost: Lost | None
    ends_s: float
    back_s: float
    download_s: float
    compute_s: float
    upload_s: float
    bytes_up: int
    energy_j: float
    flops: float


class VirtualWorker:
    """See `device_runtime.work.Worker`: takes the time that the work takes, and makes nothing.

    `believed` is the device as it believes itself to be, `slowdown` its seconds over those predicted without
    what it has learnt.
    """

    def __init__(self, believed: DeviceProfile, workload: Workload, now: float, slowdown: float) -> None:
        self.workload = workload
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

    def train(self, chosen: Candidate, seed: int, deadline: float) -> Contribution:
        """Raises OutOfTime when a device would find out that the deadline will be missed."""
        cost = chosen.cost or chosen.strategy.cost(self.workload, self._believed)
        self.peak_bytes = max(self.peak_bytes, cost.peak_memory_bytes)
        predicted_s = cost.compute_s / self._believed.corrections.get(chosen.kind, 1.0)
        began, seconds = self.now, predicted_s * self._slowdown
        if began + seconds > deadline:
            run = Run(seed, "", self._clock, deadline)
            for done in STEPS:
                self.now = began + done * seconds
                try:
                    run.pace(began, done)
                except OutOfTime:
                    self.flops += done * cost.flops
                    raise
        self.now = began + seconds
        self.flops += cost.flops
        return Contribution(chosen.kind, {}, self.workload.samples, nan)


def timeline(profile: DeviceProfile, workload: Workload, asked: Asked) -> Timeline:
    """What a device of this profile, with the corrections that it has learnt, does. A pure function."""
    luck = asked.luck
    download_s = asked.latency_s + asked.down_bytes / (profile.bandwidth.down * luck.downlink)
    began = asked.now + download_s
    worker = VirtualWorker(profile, workload, began, luck.slowdown)
    outcome = perform(worker, profile, Assignment(asked.kinds, 0, asked.closes_s))
    compute_s = worker.now - began
    chosen, power = outcome.plan.chosen, profile.power
    if chosen is None or chosen.cost is None:
        spent = (download_s, compute_s, 0.0, 0, download_s * power.idle_w + compute_s * power.load_w)
        return Timeline(outcome, "sat out", worker.now, worker.now, *spent, worker.flops)
    upload_s = asked.latency_s + chosen.cost.bytes_up / (profile.bandwidth.up * luck.uplink)
    busy = (download_s, compute_s, upload_s)
    lost, ends_s, back_s, share = _ending(sum(busy), asked)
    up, flops = chosen.cost.bytes_up, worker.flops
    if share < 1.0:
        download_s, compute_s, upload_s = _spent(busy, share)
        up, flops = round(up * upload_s / busy[2]), flops * compute_s / busy[1]
    energy_j = (download_s + upload_s) * power.idle_w + compute_s * power.load_w
    return Timeline(outcome, lost, ends_s, back_s, download_s, compute_s, upload_s, up, energy_j, flops)


def _ending(seconds: float, asked: Asked) -> tuple[Lost | None, float, float, float]:
    """How work of so many seconds ends: (how it was lost, when, when the device is back, the share done).

    A process that dies takes its work with it. A link that is lost delays what was trained: it waits in the
    outbox. A device that is no longer available (off the charger, off the network) goes on when it is again.
    """
    luck = asked.luck
    share = 1.0 if isnan(luck.crash) else luck.crash
    when = _reached(share * seconds, asked)
    if when == inf:
        left = asked.until(asked.now)
        return "dropped out", left, inf, min(1.0, (left - asked.now) / seconds)
    if share < 1.0:
        return "crashed", when, when + max(luck.away_s, WILL_S), share
    if not isnan(luck.drop):
        lost = _reached(luck.drop * seconds, asked)
        when = max(when, lost + luck.away_s)
    return None, when, when, 1.0


def _reached(seconds: float, asked: Asked) -> float:
    """When so many seconds of work are done, pausing while the device is not available; inf: never."""
    now = asked.now
    for _ in range(MOST_WINDOWS):
        left = asked.until(now)
        if now + seconds <= left:
            return now + seconds
        seconds -= max(0.0, left - now)
        now = asked.back(left)
        if now == inf:
            return inf
    return inf


def _spent(busy: tuple[float, float, float], share: float) -> tuple[float, float, float]:
    """The seconds of download, computing and upload in the first `share` of the work."""
    left, spent = share * sum(busy), []
    for seconds in busy:
        spent.append(min(seconds, left))
        left -= spent[-1]
    return spent[0], spent[1], spent[2]
