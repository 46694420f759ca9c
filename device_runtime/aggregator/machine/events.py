"""Events and commands of the round state machine.

Times are seconds of the service's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Literal

from device_runtime.aggregator.tasks.closing import Progress
from device_runtime.broker.wire.messages import Status

WorkPhase = Literal["unmask", "merge", "evaluate", "publish"]


@dataclass(frozen=True)
class ContributionId:
    """A contribution, identified by (round, device).

    boot, seq: the transmission that its receipt answers.
    samples: the number of samples that it was made from.
    form: the form of its kind.
    """

    device: str
    round: int
    kind: str
    boot: int
    seq: int
    samples: int = 1
    form: str = ""


@dataclass(frozen=True)
class TimePassed:
    """Time has passed."""

    now: float


@dataclass(frozen=True)
class DevicePresent:
    """A device came or went; the broker may have sent the last will of its process `boot`.

    `ready`: it has the task and its data; rounds do not wait for a device that still fetches them.
    """

    now: float
    device: str
    boot: int
    online: bool
    ready: bool = True


@dataclass(frozen=True)
class Forgotten:
    """A device that is away is dropped from the state, because there are too many."""

    now: float
    device: str


@dataclass(frozen=True)
class Planned:
    """A device has decided what to do in the round; an empty `kind` means that it sits out."""

    now: float
    device: str
    round: int
    kind: str


@dataclass(frozen=True)
class Announced:
    """A contribution's message has arrived.

    `sent`: the kind of the device's contribution to that round that counts already; empty for none.
    """

    now: float
    update: ContributionId
    sent: str = ""


@dataclass(frozen=True)
class Validated:
    """A contribution's content has arrived and passed the checks. `sent` as in Announced."""

    now: float
    update: ContributionId
    sent: str = ""


@dataclass(frozen=True)
class Rejected:
    """A contribution has failed a check."""

    now: float
    update: ContributionId
    reason: str


@dataclass(frozen=True)
class CommitFailed:
    """The disk refused these contributions, which were counted in the open round; they count no more."""

    now: float
    updates: tuple[ContributionId, ...]


@dataclass(frozen=True)
class PhaseDone:
    """The work of a phase is done, and durable.

    After `publish`: `score` is that of the round's model, the higher the better, nan without evaluation.
    `back`: where the run rolled back to an earlier model in this round, the progress at that model.
    """

    now: float
    phase: WorkPhase
    score: float = nan
    back: Progress | None = None


@dataclass(frozen=True)
class SumAnswered:
    """A mask helper has answered for a sum of the round that is being unmasked; others may be missing."""

    now: float


@dataclass(frozen=True)
class Invited:
    """The devices that were asked for the round; fewer than wanted where there were no more to ask."""

    now: float
    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Give:
    """From outside: open this round, which is later than any so far, or set the deadline of the open one.

    `deadline_s`: seconds from now.
    """

    now: float
    deadline_s: float
    round: int


@dataclass(frozen=True)
class Close:
    """From outside: close the open round with the contributions that it has, even none."""

    now: float


@dataclass(frozen=True)
class RolledBack:
    """The run rolled back to an earlier model; `rounds` are all that rollbacks have discarded so far."""

    now: float
    rounds: frozenset[int]


Event = (
    TimePassed
    | DevicePresent
    | Forgotten
    | Planned
    | Announced
    | Validated
    | Rejected
    | CommitFailed
    | PhaseDone
    | SumAnswered
    | Invited
    | Give
    | Close
    | RolledBack
)


@dataclass(frozen=True)
class Announce:
    """Open the round: store it, then offer it. `again`: it is open already, after a restart."""

    round: int
    again: bool = False


@dataclass(frozen=True)
class Extend:
    """Offer the round again, because its deadline passed with too few contributions; the deadline restarts.

    `contributions` counts one for each device.
    """

    round: int
    contributions: int


@dataclass(frozen=True)
class GiveUp:
    """End the run: too many deadlines in a row brought no contribution though devices were there.

    deadlines: the number of deadlines.
    deadline_s: seconds of the last deadline.
    sat_out: the names of devices that did not begin, sorted.
    missed: the names of devices that did not answer in time, sorted.
    """

    round: int
    deadlines: int
    deadline_s: float
    sat_out: tuple[str, ...]
    missed: tuple[str, ...]


@dataclass(frozen=True)
class AwaitHelpers:
    """Say for which mask helpers the round waits: a deadline has passed in which none of them answered.

    deadlines: the number of such deadlines in a row.
    deadline_s: seconds of the next one.
    """

    round: int
    deadlines: int
    deadline_s: float


@dataclass(frozen=True)
class GiveUpSums:
    """End the run: too many deadlines in a row brought no answer of a mask helper. A restart asks again."""

    round: int
    deadlines: int
    deadline_s: float


@dataclass(frozen=True)
class Invite:
    """Draw `count` more devices, offer them the open round, and answer with Invited before anything else.

    Draw from devices that are ready, not asked for this round already, and not at work on an earlier one.
    """

    round: int
    count: int


@dataclass(frozen=True)
class FetchContribution:
    """Fetch the content and check it; answer with Validated or Rejected."""

    update: ContributionId


@dataclass(frozen=True)
class StoreContribution:
    """Store the contribution durably, counted in round `into`, before the next commands are executed."""

    update: ContributionId
    into: int


@dataclass(frozen=True)
class Reply:
    """Send a receipt; with `retry_s` it tells the device to try again after that many seconds."""

    update: ContributionId
    status: Status
    reason: str = ""
    retry_s: int = 0


@dataclass(frozen=True)
class DoPhase:
    """Do this phase's work on the round, and answer with PhaseDone; `unmask` may take long.

    `durations`, for the phase after `collect`, where deadlines are learnt or rounds wait for the fast: pairs
    of a class of `pace` and a number of devices or samples, to be stored. `early` notes that the round closed
    before all devices were done.
    """

    phase: WorkPhase
    round: int
    durations: tuple[tuple[int, int], ...] = ()
    early: str = ""


@dataclass(frozen=True)
class Finish:
    """Report that the last round is closed. `best`: the round whose model is served; 0: the last round's."""

    best: int = 0


ContributionCommand = FetchContribution | StoreContribution | Reply
"""About one contribution: an error in such a command does not stop the run."""
RoundCommand = Announce | Extend | GiveUp | AwaitHelpers | GiveUpSums | Invite | DoPhase | Finish
"""About the round: executed when all counted contributions are on the disk."""
Command = ContributionCommand | RoundCommand
