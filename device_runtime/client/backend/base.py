"""The interface of a backend, which works on rounds in this process or in a worker process.

The link, the files and the owner's rules stay on the device's side of it; all that needs numpy, an engine,
samples or a model is on the other (`in_process`, `subprocess`). All that passes between them can be
serialized.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from device_runtime.broker.wire.messages import Blob, Contribution, Hello, Offer, Plan
from device_runtime.client.connection.offers import OpenRound
from device_runtime.client.policy.work_gate import WorkGate
from device_runtime.client.selection.link_speed import LinkSpeed

if TYPE_CHECKING:
    from device_runtime.client.settings import Settings

Bundles = tuple[tuple[str, Blob], ...]
"""By member of the family; the main model's by ""."""
LEFT = "left"
"""Folder, in the device's own, of what codecs left out of updates."""


class RoundPreview(msgspec.Struct, frozen=True):
    """The member of the family for a round (None: not known yet), and the blobs to fetch before it."""

    member: str | None
    missing: tuple[Blob, ...]


class WorkResult(msgspec.Struct, frozen=True):
    """The result of a round's work: the contribution, without boot and seq, and the bytes of its upload.

    The contribution is None if the device sits out, for these `reasons`, or if it cannot be kept (`trouble`).
    """

    run: str
    round: int
    message: Contribution | None = None
    bytes_up: int = 0
    reasons: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class BackendListener:
    """Callbacks of a round's work.

    `progress`, from 0 to 1, and `between`, after each run of an engine, raise as `Interruption.between` does.
    `lost`: seconds that the work has been paused. `decided`: the plan that is tried now. `made`: the result.
    `answered`: whether this round's work was done before. `waiting`: the rounds of a run whose contributions
    have no receipt.
    """

    progress: Callable[[float], None]
    between: Callable[[], None]
    lost: Callable[[], float]
    decided: Callable[[Offer, Plan, float], None]
    made: Callable[[WorkResult], None]
    answered: Callable[[Offer], bool]
    waiting: Callable[[str], Collection[int]]


class WorkBackend(Protocol):
    """Works on one task at a time: that of the offer that was last looked at.

    All methods raise DataError, ModelError, OutOfMemory for errors that waiting does not solve, LeftOut for
    what is wrong with one round, StaleBase and BlobError for what must be fetched anew, WorkDied.
    """

    @property
    def bundles(self) -> Bundles:
        """Bundles of the task that is known here; empty if none is."""

    def hello(self, boot: int) -> Hello:
        """The device's hello, for a task that is known."""

    def warm_up(self) -> None:
        """There will be work soon."""

    def look(self, current: OpenRound) -> RoundPreview:
        """What a round still needs before its work. Makes its task once the bundles are here."""

    def prepare(self, current: OpenRound) -> None:
        """Make the base of a round. Nothing may be missing."""

    def work(self, current: OpenRound, listener: BackendListener) -> bool:
        """Do the round's work. False: it goes on in the background; call `work` again soon.

        Raises what `listener` raise.
        """

    def after(self, current: OpenRound, between: Callable[[], None]) -> None:
        """Work for the device's own model after a round, once nothing waits to be sent."""

    def keep(self, over: OpenRound, between: Callable[[], None]) -> None:
        """Keep the model of a task that is done, as the owner wants it. Nothing may be missing."""

    def settle(self, message: Contribution, counts: bool) -> None:
        """A contribution has its receipt."""

    def heed(self) -> None:
        """Raises OutOfMemory if memory has run out while work is paused."""

    def tidy(self) -> None:
        """Called now and then while nothing is worked on."""

    def put_down(self) -> None:
        """Save to disk what is in memory only."""

    def close(self) -> None:
        """End the backend. May be called twice."""


MakeBackend = Callable[["Settings", WorkGate, LinkSpeed], WorkBackend]


def bundles_of(offer: Offer) -> Bundles:
    """The bundles of an offer, which tell one task from another."""
    return (("", offer.bundle), *((member.name, member.bundle) for member in offer.family))
