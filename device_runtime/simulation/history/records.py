"""Records of a simulated run (one per asked device, one per closed round) and the observer interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Literal, Protocol

from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.simulation.executors.job import TrainingJob
from device_runtime.strategies.interface.device_half import Update

LostReason = Literal["crashed", "dropped out", "sat out", "rested"]
AskOutcome = LostReason | Literal["counted", "late", "refused", "unheard", "unopened"]
"""The fate of a device that was asked for an update.

counted: its update counted.
late: its update came too late.
refused: its update failed the checks.
crashed: its process died or its battery ran empty.
dropped out: it left for good.
sat out: no form fitted.
rested: nothing was wanted of what it would have sent.
unheard: the run ended first.
unopened: its masked update was in a sum of too few devices.
"""


@dataclass(frozen=True)
class AskRecord:
    """One device asked for one update. Times are virtual seconds since the run began.

    round: the round in which it was asked.
    into: the round in which its update counts; 0: none.
    kind: empty for a device that sat out.
    form: the variant of the kind ("entropy-subset 25%").
    group: its group in the fleet.
    compute_s: includes work that was abandoned.
    bytes and energy: what was spent, also for an update that did not count; for `unheard`, until the run
    ended.
    forward_passes: compute in F, one forward pass of one sample (thesis 000, A.1).
    epsilon: the privacy spent so far by the device's samples; nan for an update that is not private.
    norm: how far the update is from its base, the Euclidean length; nan where the aggregator does not measure
    it: of class means, in sums of masked updates, with a robust rule, and of updates that do not count.
    """

    round: int
    into: int
    device: str
    group: str
    kind: str
    form: str
    fate: AskOutcome
    straggler: bool
    asked_s: float
    ended_s: float
    download_s: float
    compute_s: float
    upload_s: float
    bytes_down: int
    bytes_up: int
    energy_j: float
    peak_memory_bytes: int
    num_examples: int
    forward_passes: float
    train_loss: float
    why: str
    epsilon: float = nan
    norm: float = nan


@dataclass(frozen=True)
class DeviceEvaluation:
    """The model that a run serves last, on the test samples of one device's own.

    samples, test_samples: that it trained on, and was tested on.
    accuracy: or the metric of the bundle's loss; nan without test samples. loss: in the graphs' units.
    personal_accuracy, personal_loss: with a classifier that the device trained further on its own samples, as
    `join --personal-head` does; nan where a device would have none.
    """

    device: str
    group: str
    samples: int
    test_samples: int
    accuracy: float
    loss: float
    personal_accuracy: float = nan
    personal_loss: float = nan


@dataclass(frozen=True)
class SimulatedRound:
    """One closed round.

    eval_*: of the served model; nan in rounds that were not evaluated.
    metric: the name of the metric that eval_acc and the like are; eval_metrics: further ones, by name.
    base_eval_*: of the next base, whose head is trained.
    closed_form_eval_*: of the model with the closed-form head, also where the trained head was better and is
    served; nan and () where there is no closed-form head.
    energy_j, bytes_*, train_time_s, forward_passes: sums over every device whose ask ended in this round,
    with any outcome; no round has those that the end of the run cut off (`unheard`).
    wasted_j: the part of `energy_j` of devices whose update did not count.
    asked: the number of asks that ended; a device that died, or sat out before an extension, may have been
    asked twice.
    participants: the number of devices whose update counts.
    staleness: the mean number of rounds by which these updates were behind.
    unopened: the number of masked updates that were in sums of too few devices; nan without masks.
    central_epsilon: what central noise has spent of the privacy budget so far; nan without.
    held_out_eval_acc: metric of the served model on the samples of devices that are held out; nan without.
    """

    round: int
    opened_s: float
    closed_s: float
    eval_acc: float
    eval_loss: float
    base_eval_acc: float
    train_loss: float
    asked: int
    participants: int
    stragglers: int
    late: int
    lost: int
    sat_out: int
    refused: int
    staleness: float
    train_time_s: float
    energy_j: float
    wasted_j: float
    bytes_up: int
    bytes_down: int
    forward_passes: float
    eval_acc_by_class: tuple[float, ...] = ()
    base_eval_acc_by_class: tuple[float, ...] = ()
    closed_form_eval_acc: float = nan
    closed_form_eval_acc_by_class: tuple[float, ...] = ()
    metric: str = ACCURACY
    eval_metrics: dict[str, float] = field(default_factory=dict)
    unopened: float = nan
    central_epsilon: float = nan
    rested: int = 0
    held_out_eval_acc: float = nan


class RunObserver(Protocol):
    """Observes a run: writes files, shows progress, or gathers local models.

    Called in the order of virtual time. An exception in it ends the run.
    """

    def asked(self, ask: AskRecord) -> None:
        """A device's part in a round is over."""

    def trained(self, job: TrainingJob, update: Update) -> None:
        """An update that counts; its tensors are valid during the call only."""

    def closed(self, line: SimulatedRound) -> None:
        """A round is over."""


class NullObserver:
    """An observer that ignores everything."""

    def asked(self, ask: AskRecord) -> None:
        pass

    def trained(self, job: TrainingJob, update: Update) -> None:
        pass

    def closed(self, line: SimulatedRound) -> None:
        pass
