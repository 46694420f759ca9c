"""What the round machine is told, and what it asks for. Times are seconds of the service's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Literal

from device_runtime.broker.wire.messages import Status

from .pace import Progress

WorkPhase = Literal["merge", "evaluate", "publish"]


@dataclass(frozen=True)
class Update:
    """A contribution by its key (round, device), its kind, the sending (boot, seq) of its receipt, how many
    samples it was made from, and which of the kind's forms it is.
    """

    device: str
    round: int
    kind: str
    boot: int
    seq: int
    samples: int = 1
    form: str = ""


@dataclass(frozen=True)
class Tick:
    now: float


@dataclass(frozen=True)
class DevicePresent:
    """A device came, went, or was said to have gone by the last will of its life `boot`.

    `ready`: it has the task and its data; rounds do not wait for one that still fetches them.
    """

    now: float
    device: str
    boot: int
    online: bool
    ready: bool = True


@dataclass(frozen=True)
class Forgotten:
    """A device that is away is not remembered any longer: there are too many."""

    now: float
    device: str


@dataclass(frozen=True)
class Planned:
    """A device has decided; an empty `kind` sits the round out."""

    now: float
    device: str
    round: int
    kind: str


@dataclass(frozen=True)
class Announced:
    """A contribution's message is here. `sent`: the kind of the device's contribution to that round which
    counts already, if any does.
    """

    now: float
    update: Update
    sent: str = ""


@dataclass(frozen=True)
class Validated:
    """A contribution's content is here and has passed the checks. `sent` as in Announced."""

    now: float
    update: Update
    sent: str = ""


@dataclass(frozen=True)
class Rejected:
    """A contribution has failed a check."""

    now: float
    update: Update
    reason: str


@dataclass(frozen=True)
class CommitFailed:
    """The disk refused these, which were counted in the open round: they are as if they had never come."""

    now: float
    updates: tuple[Update, ...]


@dataclass(frozen=True)
class PhaseDone:
    """The work of a phase is done, and durable.

    After `publish`: `score` says what the round's model is worth, the higher the better, nan where nobody
    knows; `back`, where the run was set back to an earlier model in it, what had been learnt until that.
    """

    now: float
    phase: WorkPhase
    score: float = nan
    back: Progress | None = None


@dataclass(frozen=True)
class Invited:
    """Who was really asked for the round; fewer than was wanted where there were no more to ask."""

    now: float
    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Give:
    """From outside: this round may be opened, a later one than any so far, or if it is the open one it has so
    many seconds from now on.
    """

    now: float
    deadline_s: float
    round: int


@dataclass(frozen=True)
class Close:
    """From outside: the open round closes with what it has, were it nothing."""

    now: float


@dataclass(frozen=True)
class RolledBack:
    """The run went back to an earlier model: `rounds` are all that have been given up so far."""

    now: float
    rounds: frozenset[int]


Event = (
    Tick
    | DevicePresent
    | Forgotten
    | Planned
    | Announced
    | Validated
    | Rejected
    | CommitFailed
    | PhaseDone
    | Invited
    | Give
    | Close
    | RolledBack
)


@dataclass(frozen=True)
class Announce:
    """Open the round: keep it, then offer it. `again` after a restart: it is open already."""

    round: int
    again: bool = False


@dataclass(frozen=True)
class Extend:
    """The deadline passed with contributions of too few devices and begins anew: offer the round again.
    `contributions` counts one for each device.
    """

    round: int
    contributions: int


@dataclass(frozen=True)
class GiveUp:
    """Too many deadlines in a row have brought no contribution, though devices were there: the run ends.

    `deadlines` of `deadline_s` seconds (the last of them); `sat_out` and `missed` are devices, sorted: those
    that did not begin, and those that were waited for in vain.
    """

    round: int
    deadlines: int
    deadline_s: float
    sat_out: tuple[str, ...]
    missed: tuple[str, ...]


@dataclass(frozen=True)
class Invite:
    """Pick so many more devices, offer them the open round, and answer with Invited before anything else.

    Pick from those that are ready, and neither asked for this round already nor at work on an earlier one.
    """

    round: int
    count: int


@dataclass(frozen=True)
class Fetch:
    """Get the content and check it; answer with Believed or Disbelieved."""

    update: Update


@dataclass(frozen=True)
class StoreContribution:
    """Store it durably, counted in round `into`. Only then may the commands after it be done."""

    update: Update
    into: int


@dataclass(frozen=True)
class Reply:
    """Send a receipt; with `retry_s` it says to come again after so many seconds."""

    update: Update
    status: Status
    reason: str = ""
    retry_s: int = 0


@dataclass(frozen=True)
class DoPhase:
    """Do this phase's work on the round, and answer with Worked.

    `durations` goes with `merge` where deadlines are learnt, or rounds wait for the fast: classes of `pace`
    and how many devices needed so long; keep them. `early` says that the round closed before all were done.
    """

    phase: WorkPhase
    round: int
    durations: tuple[tuple[int, int], ...] = ()
    early: str = ""


@dataclass(frozen=True)
class Finish:
    """The last round is closed: say so. `best`: the round whose model is to be served; 0: the last one's."""

    best: int = 0


Command = Announce | Extend | GiveUp | Invite | Fetch | StoreContribution | Reply | DoPhase | Finish
