"""The interface of a task on a device, and its inputs for a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from device_runtime.broker.wire.messages import Hello, Offer
from device_runtime.device.engine.engine_guard import EngineGuard
from device_runtime.device.errors import WorkerDeath
from device_runtime.device.traffic import LinkSpeed
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.codecs.chain import Encoded
from device_runtime.strategies.interface.device_half import Update

from .work import Listener, WorkOutcome

if TYPE_CHECKING:
    from .settings import Settings


@dataclass(frozen=True)
class RoundInputs:
    """What a device gets for a round: the offer, a base model, and the tensors sent beside it (`aside`).

    `base` is that of `member` of the family; "" is the main model. `deaths` as in Assignment.
    """

    offer: Offer
    member: str
    base: Tensors
    aside: Tensors
    deaths: tuple[WorkerDeath, ...] = ()


class OneTask(Protocol):
    """Works on the rounds of one task: a device with its samples (DeviceTask), or a site in its place.

    `engine_guard` watches the engine.
    """

    engine_guard: EngineGuard

    def hello(self, boot: int) -> Hello:
        """The device's hello with its number of samples; 0 while rounds are not to wait for it."""

    def bundle(self, member: str) -> Bundle:
        """The bundle of this member of the family, or the main model's, "". Raises KeyError."""

    def member(self, offer: Offer, remaining_s: float) -> str:
        """The member of the family that the device would train in this round."""

    def rest_reason(self, offer: Offer, remaining_s: float) -> str:
        """Why the device rests in this round; empty if it does not."""
        return ""

    def train_round(self, inputs: RoundInputs, closes_at: float, listener: Listener) -> WorkOutcome | None:
        """Do the round's work. None: it goes on in the background, so call `train_round` again soon."""

    def unsent(self, offer: Offer) -> tuple[RoundInputs, WorkOutcome] | None:
        """The inputs and outcome of an earlier round's background work, if this offer ends it."""
        return None

    def encoded(self, inputs: RoundInputs, outcome: WorkOutcome, left: Tensors) -> Encoded:
        """An update as it is sent in the clear, together with what codecs left out of earlier ones (`left`).

        Raises ValueError for an outcome without an update, TensorError.
        """

    def keep(self, offer: Offer, update: Update) -> None:
        """Keep the strategy state of a round's update for the next round. Raises OSError."""

    def keep_final_model(self, inputs: RoundInputs, pause_point: Callable[[], None]) -> None:
        """Keep the model of a task that is done as the device's own, and evaluate it."""
        return

    def evaluate_personal_model(self, inputs: RoundInputs, pause_point: Callable[[], None]) -> None:
        """Evaluate the device's own model after a round, once nothing waits to be sent."""
        return


MakeTask = Callable[["Settings", Mapping[str, Bundle], Callable[[], float], LinkSpeed], OneTask]
"""Makes a task once its bundles are here: by member, the main model's under ""."""
