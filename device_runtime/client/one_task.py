"""What works on the rounds of one task: a device with its samples, or whoever takes a device's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from device_runtime.broker.wire.messages import Hello, Offer
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.codecs.chain import Encoded
from device_runtime.strategies.training.device_half import TrainedUpdate

from .errors import WorkerDeath
from .selection.link_speed import LinkSpeed
from .training.engine_guard import Watcher
from .training.work import Listener, WorkOutcome

if TYPE_CHECKING:
    from .settings import Settings


@dataclass(frozen=True)
class RoundInputs:
    """What a round gives a device: the offer, the base of this member of the family (or of the main model,
    ""), and what came beside it; `deaths` as of Assignment.
    """

    offer: Offer
    member: str
    base: Tensors
    aside: Tensors
    deaths: tuple[WorkerDeath, ...] = ()


class OneTask(Protocol):
    """See DeviceTask. `watcher` watches the work."""

    watcher: Watcher

    def hello(self, boot: int) -> Hello:
        """Who is here, and with how many samples; 0 while rounds are not to wait for it."""

    def bundle(self, member: str) -> Bundle:
        """Of this member of the family, or the main one's. Raises KeyError."""

    def member(self, offer: Offer, remaining_s: float) -> str:
        """Which model a round would be worked on with."""

    def perform(self, given: RoundInputs, deadline: float, listener: Listener) -> WorkOutcome | None:
        """The round's work. None: it goes on elsewhere, and `perform` is to be called again soon."""

    def unsent(self, offer: Offer) -> tuple[RoundInputs, WorkOutcome] | None:
        """What has come of an earlier round's work, where it went on elsewhere and this offer ends it."""
        return None

    def encoded(self, given: RoundInputs, outcome: WorkOutcome, left: Tensors) -> Encoded:
        """An update as it is sent, with what was left out of those before.

        Raises ValueError for an outcome without contribution, TensorError.
        """

    def keep(self, offer: Offer, made: TrainedUpdate) -> None:
        """What the kind keeps of a round's update for the next. Raises OSError."""

    def final(self, given: RoundInputs, between: Callable[[], None]) -> None:
        """What there is to do for oneself with what came of a task that is done."""
        return

    def after(self, given: RoundInputs, between: Callable[[], None]) -> None:
        """What there is to do for oneself, once nothing waits to be sent."""
        return


MakeTask = Callable[["Settings", Mapping[str, Bundle], Callable[[], float], LinkSpeed], OneTask]
"""Makes what works on a task, once its bundles are here: by member, the main one's by ""."""
