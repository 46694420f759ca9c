"""Where the work on rounds is done: in this process (`here`), or in one of its own (`apart`).

On the device's side of it are the link, the files, and the owner's rules; beyond it all that needs numpy, an
engine, samples, or a model. What crosses it can be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from device_runtime.broker.wire.messages import Blob, Contribution, Hello, Offer, Plan
from device_runtime.client.connection.offers import Open
from device_runtime.client.policy.work_gate import Hours
from device_runtime.client.selection.link_speed import LinkSpeed

if TYPE_CHECKING:
    from device_runtime.client.settings import Settings

Bundles = tuple[tuple[str, Blob], ...]
"""By member of the family; the main model's by ""."""
LEFT = "left"
"""In the device's folder: what codecs left out of updates."""


class RoundPreview(msgspec.Struct, frozen=True):
    """With which member of the family a round would be worked on (None: not known yet), and what must be
    fetched before it can be.
    """

    member: str | None
    missing: tuple[Blob, ...]


class WorkResult(msgspec.Struct, frozen=True):
    """What came of a round's work: the contribution, boot and seq still to be filled in, and the bytes that
    it takes on the way; None where the device sits out, for these `reasons`, or where it cannot be kept.
    """

    run: str
    round: int
    message: Contribution | None = None
    bytes_up: int = 0
    reasons: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class BackendListener:
    """Who is told of a round's work, and asked.

    `progress`, from 0 to 1, and `between`, after each run of an engine, raise as `Going.between` does.
    `lost`: seconds that the work has stood still. `answered`: whether this round's work was done before.
    `waiting`: the rounds of a run whose contributions have no receipt.
    """

    progress: Callable[[float], None]
    between: Callable[[], None]
    lost: Callable[[], float]
    decided: Callable[[Offer, Plan, float], None]
    made: Callable[[WorkResult], None]
    answered: Callable[[Offer], bool]
    waiting: Callable[[str], Collection[int]]


class WorkBackend(Protocol):
    """One task at a time: that of the offer which was looked at last.

    All methods raise DataError, ModelError, OutOfMemory for what this device cannot mend by waiting, LeftOut
    for what is wrong with one round, StaleBase and BlobError for what is to be fetched anew, WorkDied.
    """

    @property
    def bundles(self) -> Bundles:
        """Of the task that is known here; empty where none is."""

    def hello(self, boot: int) -> Hello:
        """Who is here, and with what: for a task that is known."""

    def warm_up(self) -> None:
        """There will soon be something to do."""

    def look(self, current: Open) -> RoundPreview:
        """What a round still needs to be worked on. Makes its task, once its bundles are here."""

    def prepare(self, current: Open) -> None:
        """Have the base of a round at hand. Nothing may be missing."""

    def work(self, current: Open, ears: BackendListener) -> bool:
        """The round's work. False: it goes on elsewhere, and `work` is to be called again soon.

        Raises what `ears` raise.
        """

    def after(self, current: Open, between: Callable[[], None]) -> None:
        """What there is to do for oneself after a round, once nothing waits to be sent."""

    def keep(self, over: Open, between: Callable[[], None]) -> None:
        """The model of a task that is done, as the owner wants it. Nothing may be missing."""

    def settle(self, message: Contribution, counts: bool) -> None:
        """A contribution has its receipt."""

    def heed(self) -> None:
        """Raises OutOfMemory where memory has run out while work stands still."""

    def tidy(self) -> None:
        """Called now and then while nothing is worked on."""

    def put_down(self) -> None:
        """What is in memory and cannot be had again from the disk goes there."""

    def close(self) -> None:
        """Let go of it. May be called twice."""


MakePlace = Callable[["Settings", Hours, LinkSpeed], WorkBackend]


def bundles_of(offer: Offer) -> Bundles:
    """What tells one task from another."""
    return (("", offer.bundle), *((member.name, member.bundle) for member in offer.family))
