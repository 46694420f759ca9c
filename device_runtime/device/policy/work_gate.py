"""Tells whether the owner's rules allow work now, and how long they have paused it.

The rules, and a pause by hand, are kept in the device's folder. An owner may also have the process
lowered in its share of processor, disk and memory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path

import msgspec

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.device.errors import PolicyError
from device_runtime.device.traffic import TrafficLog
from device_runtime.machine_readings import use_idle_disk

from .conditions import ConditionReader
from .rules import Policy, RuleVerdict, judge

log = logging.getLogger(__name__)

PAUSED = "paused"
POLICY = "policy.json"


LOOK_S = 1.0
"""Seconds for which a verdict is reused."""

JudgeRules = Callable[[frozenset[str]], RuleVerdict]
"""Judges the rules now, given the names of those that said no the last time."""


class WorkGate:
    """The work gate. `clock` is the device's own, in seconds; `judged` may be replaced until work begins."""

    def __init__(self, clock: Callable[[], float], judged: JudgeRules = lambda _: RuleVerdict()) -> None:
        self.clock = clock
        self.judge = judged
        self.verdict = RuleVerdict()
        self._looked_at = -inf
        self._paused_before_s = 0.0
        self._paused_at: float | None = None

    def open(self) -> bool:
        """Whether work is allowed, as of the last LOOK_S seconds. A change is logged."""
        now = self.clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            before, self.verdict = self.verdict, self.judge(self.verdict.failed_rules)
            if before.failed_rules != self.verdict.failed_rules:
                self._say()
        return self.verdict.allows

    @property
    def reason(self) -> str:
        """Why work is not allowed; empty if it is."""
        return f"paused: {'; '.join(self.verdict.reasons)}" if self.verdict.reasons else ""

    def look_again(self) -> None:
        """Judge the rules at the next call of `open`. May be called in a signal handler."""
        self._looked_at = -inf

    @contextmanager
    def on_hold(self) -> Iterator[None]:
        """Inside, work that has begun is paused."""
        self._paused_at = self.clock()
        try:
            yield
        finally:
            self._paused_before_s, self._paused_at = self.paused_s(), None

    def paused_s(self) -> float:
        """Seconds that work in progress has been paused so far."""
        return self._paused_before_s + (0.0 if self._paused_at is None else self.clock() - self._paused_at)

    def work_clock(self) -> float:
        """The clock of the work itself, in seconds: it stops while work is paused."""
        return self.clock() - self.paused_s()

    def _say(self) -> None:
        if self.verdict.allows:
            log.info("work may be done again")
        else:
            log.info("%s", self.reason)


class OwnerRules:
    """Judges the rules of one device, and its pause by hand.

    `counted` gives the bytes that its link has sent and received.
    """

    def __init__(self, policy: Policy, folder: Path, counted: Callable[[], tuple[int, int]]) -> None:
        self.traffic = TrafficLog(folder)
        self._policy, self._folder, self._counted = policy, folder, counted
        self._look = ConditionReader(policy, lambda: self.traffic.bytes_today)

    def verdict(self, refusals: frozenset[str] = frozenset()) -> RuleVerdict:
        """See `rules.judge`. Traffic is counted at each call."""
        self.count()
        return judge(self._policy, self._look.conditions(paused(self._folder)), refusals)

    def count(self) -> None:
        """Add what the link has counted since the last time."""
        self.traffic.saw(*self._counted())


def pause(folder: Path) -> None:
    """Pause the device by hand until `resume`, also across restarts. Raises OSError."""
    replace_file(folder / PAUSED, f"by hand, since {datetime.now():%Y-%m-%d %H:%M}\n".encode())


def resume(folder: Path) -> None:
    """End a pause by hand, if there is one."""
    with suppress(FileNotFoundError):
        (folder / PAUSED).unlink()


def paused(folder: Path) -> str:
    """Since when the device is paused by hand; empty if it is not."""
    try:
        return (folder / PAUSED).read_text("utf-8", "replace").strip() or "by hand"
    except OSError:
        return ""


def keep(policy: Policy, folder: Path) -> None:
    """Save the policy, for commands that show it."""
    try:
        replace_file(folder / POLICY, msgspec.json.format(msgspec.json.encode(policy)) + b"\n")
    except OSError as error:
        log.warning("the policy cannot be kept in %s: %s", folder, error.strerror)


def kept_policy(folder: Path) -> Policy | None:
    """The policy with which the device last joined, if any. Raises PolicyError if it cannot be read."""
    try:
        return msgspec.json.decode((folder / POLICY).read_bytes(), type=Policy)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PolicyError(f"{folder / POLICY} cannot be read: {error}") from None


FIRST_TO_GO = 500
"""OOM score, of 1000: the kernel ends this process first when memory runs out, as its work can be redone."""


@dataclass(frozen=True)
class ProcessPriority:
    """How much of the machine the process takes.

    `nice` from 0 to 19; `idle_io`: use the disk only when nobody else does; `cores`: use at most so many.
    """

    nice: int = 0
    idle_io: bool = False
    cores: int | None = None

    def apply(self, oom: Path = Path("/proc/self/oom_score_adj")) -> None:
        """Apply to this process and its children. What the system does not allow is logged and skipped."""
        if self.nice:
            _try("--nice", lambda: _each(lambda number: os.setpriority(os.PRIO_PROCESS, number, self.nice)))
        if self.idle_io:
            _try("--idle-io", use_idle_disk)
        if self.cores is not None:
            cores = self.cores
            _try("--cores", lambda: _keep_to(sorted(os.sched_getaffinity(0))[:cores]))
        try:
            if int(oom.read_text()) < FIRST_TO_GO:
                oom.write_text(str(FIRST_TO_GO))
        except (OSError, ValueError) as error:
            log.debug("the OOM score of this process stays as it is: %s", error)


def _each(act: Callable[[int], None], tasks: Path = Path("/proc/self/task")) -> None:
    """Call `act` for each thread of this process, numpy's included: Linux sets priorities by thread."""
    try:
        numbers = [int(path.name) for path in tasks.iterdir()]
    except OSError:
        numbers = [0]
    for number in numbers:
        with suppress(ProcessLookupError):
            act(number)


def _keep_to(cores: list[int]) -> None:
    _each(lambda number: os.sched_setaffinity(number, cores))


def _try(what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except (OSError, AttributeError) as error:
        log.warning("%s is not possible here: %s", what, error)
