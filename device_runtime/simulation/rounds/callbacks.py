"""Callbacks: the user's code that a simulated run calls at its start, updates, rounds and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.executors.job import TrainingJob
from device_runtime.simulation.history.metrics import NOTHING_UNHEARD, UnheardWork
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.strategies.interface.device_half import NO_TENSORS, Update


class CallbackError(SimulationError):
    """Raised when a callback raises; the message names the callback, its method and the exception."""


@dataclass(frozen=True)
class StartedRun:
    """A run that starts or resumes.

    settings: of the scenario under the policy, as nested dicts of plain values; the caller owns them.
    folder: of the run's files; None if it writes none.
    first_round: the first round that is reported; more than 1 for a run that resumes from a checkpoint.
    """

    policy: str
    seed: int
    settings: Mapping[str, Any]
    folder: Path | None = None
    first_round: int = 1

    @property
    def name(self) -> str:
        """The policy and the seed: "choose-0"."""
        return f"{self.policy}-{self.seed}"


@dataclass(frozen=True)
class ClosedRound:
    """A closed round of a run.

    seconds: virtual, from the start of the run to the end of this round.
    accuracy, loss: of the served model on the test samples; nan in rounds without an evaluation.
    train_loss: mean over the samples that were trained on; nan where nothing was.
    devices: the number of devices whose update counts.
    asked: the number of requests for an update that ended in this round.
    energy_j, bytes_up, bytes_down: of all devices whose part in a round ended in this one.
    contributions: the number of updates that count, by kind of update.
    record: all figures of the round, as in the run's rounds.csv.
    metrics: further metrics of the served model, by name.
    """

    number: int
    seconds: float
    accuracy: float
    loss: float
    train_loss: float
    devices: int
    asked: int
    energy_j: float
    bytes_up: int
    bytes_down: int
    contributions: Mapping[str, int]
    record: SimulatedRound
    served: Tensors = field(default_factory=lambda: NO_TENSORS, repr=False, compare=False)

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.record.eval_metrics

    def weights(self) -> dict[str, NDArray[Any]]:
        """A copy of the model that the round serves: its tensors by name. `served` are the same, uncopied."""
        return {name: np.array(value) for name, value in self.served.items()}

    @classmethod
    def of(
        cls, record: SimulatedRound, contributions: Mapping[str, int], served: Tensors = NO_TENSORS
    ) -> ClosedRound:
        return cls(
            number=record.round,
            seconds=record.closed_s,
            accuracy=record.eval_acc,
            loss=record.eval_loss,
            train_loss=record.train_loss,
            devices=record.participants,
            asked=record.asked,
            energy_j=record.energy_j,
            bytes_up=record.bytes_up,
            bytes_down=record.bytes_down,
            contributions=dict(contributions),
            record=record,
            served=served,
        )


@dataclass(frozen=True)
class EndedRun:
    """A finished run. `rounds` has all of its rounds, also those from before it was resumed.

    served: the tensors of the model that the last round serves.
    unheard: what was spent on work that the end of the run cut off, a part of energy and bytes.
    """

    policy: str
    seed: int
    rounds: tuple[SimulatedRound, ...]
    served: Tensors = field(default_factory=lambda: NO_TENSORS, repr=False)
    folder: Path | None = None
    unheard: UnheardWork = NOTHING_UNHEARD

    @property
    def accuracy(self) -> float:
        """Accuracy of the served model in the last evaluated round; nan if there is none."""
        return _evaluated(self.rounds, lambda line: line.eval_acc)[-1]

    @property
    def best_accuracy(self) -> float:
        """Highest accuracy of the evaluated rounds; nan if there are none."""
        return max(_evaluated(self.rounds, lambda line: line.eval_acc))

    @property
    def loss(self) -> float:
        """Loss of the served model in the last evaluated round; nan if there is none."""
        return _evaluated(self.rounds, lambda line: line.eval_loss)[-1]

    @property
    def seconds(self) -> float:
        """Virtual seconds of the whole run."""
        return self.rounds[-1].closed_s if self.rounds else 0.0

    @property
    def energy_j(self) -> float:
        return sum(line.energy_j for line in self.rounds) + self.unheard.energy_j

    @property
    def bytes_up(self) -> int:
        return sum(line.bytes_up for line in self.rounds) + self.unheard.bytes_up

    @property
    def bytes_down(self) -> int:
        return sum(line.bytes_down for line in self.rounds) + self.unheard.bytes_down


def _evaluated(rounds: Sequence[SimulatedRound], value: Callable[[SimulatedRound], float]) -> list[float]:
    """The value in each round that has it; nan alone if none has."""
    return [value(line) for line in rounds if not isnan(value(line))] or [nan]


class Callback:
    """Override the methods that are of use; each does nothing otherwise.

    They are called in the order of virtual time. One callback may see several runs, one after another. An
    exception in a method stops the run with CallbackError.
    """

    def on_run_start(self, run: StartedRun) -> None:
        """A run starts or resumes."""

    def on_update(self, job: TrainingJob, update: Update) -> None:
        """A device has trained an update that counts; its tensors are valid during the call only.

        `update.device` is the device's name, `job.device` its number in the fleet.
        """

    def on_round(self, round: ClosedRound) -> None:  # noqa: A002
        """A round is closed. A resumed run reports only its new rounds."""

    def on_run_end(self, result: EndedRun) -> None:
        """The run is finished and its files are written."""

    def on_run_failed(self, error: BaseException) -> None:
        """The run has failed or was interrupted; an exception in this method is ignored."""


class CallbackObserver:
    """An observer of a run that calls callbacks. Its methods raise CallbackError."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._counted: Counter[str] = Counter()
        self._served: Tensors = NO_TENSORS

    def serves(self, served: Tensors) -> None:
        """Takes the model that the round serves which closes next; it is not copied."""
        self._served = served

    def started(self, run: StartedRun) -> None:
        self._call("on_run_start", run)

    def asked(self, ask: AskRecord) -> None:
        self._counted[ask.kind] += ask.fate == "counted"

    def trained(self, job: TrainingJob, update: Update) -> None:
        self._call("on_update", job, update)

    def closed(self, line: SimulatedRound) -> None:
        closed, self._counted = ClosedRound.of(line, +self._counted, self._served), Counter()
        self._call("on_round", closed)

    def ended(self, result: EndedRun) -> None:
        self._call("on_run_end", result)

    def failed(self, error: BaseException) -> None:
        """Raises nothing, so that `error` stays the one that is shown."""
        for callback in self._callbacks:
            with suppress(Exception):
                callback.on_run_failed(error)

    def _call(self, method: str, *arguments: object) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, method)(*arguments)
            except Exception as error:
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise CallbackError(f"callback {type(callback).__name__}.{method}: {why}") from error
