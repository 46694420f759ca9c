"""Metrics of a run: accuracy over rounds, time, energy or bytes; totals of asks, participation, fairness.

Accuracy is a step function: each model is served until the next.

The papers' formulas of cost and efficiency are here too. Asks are counted in one pass, so that ten
million lines need no memory of their own. The papers' formulas ignore headers, hashes, repeats and the
first download of the model. Compute is in F, one forward pass of one sample; a backward pass is 2 F.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import mean
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.kinds.slora import SparseStage
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

Axis = Literal["rounds", "time", "energy", "bytes"]


@dataclass(frozen=True)
class Curve:
    """A step function: `value[i]` holds from `at[i]` (ascending) until `at[i + 1]`; both float64 (n,)."""

    at: NDArray[np.float64]
    value: NDArray[np.float64]

    def when(self, at: float, values: int = 1) -> float:
        """The value at this point of the axis, or the mean of the last `values` values; nan before any."""
        points = int(np.searchsorted(self.at, at, side="right"))
        return float(self.value[max(0, points - values) : points].mean()) if points else nan

    def reaches(self, target: float) -> float:
        """The first point with a value of at least `target`; nan if there is none."""
        reached = np.flatnonzero(self.value >= target)
        return float(self.at[reached[0]]) if reached.size else nan

    @property
    def final(self) -> float:
        return float(self.value[-1]) if self.value.size else nan

    @property
    def best(self) -> float:
        return float(self.value.max()) if self.value.size else nan

    def smoothed(self, values: int) -> Curve:
        """The curve of moving means: each value is the mean of the last `values` values."""
        ends = range(1, len(self.value) + 1)
        means = [self.value[max(0, end - values) : end].mean() for end in ends]
        return Curve(self.at, np.array(means, np.float64))

    def sampled(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values at ascending points, (len(grid),); nan before the first point and after the last."""
        points = np.searchsorted(self.at, grid, side="right")
        inside = (points > 0) & (grid <= self.at[-1] if self.at.size else False)
        return np.where(inside, self.value[np.maximum(points, 1) - 1] if self.value.size else nan, nan)


@dataclass(frozen=True)
class Model:
    """One of the models of a round: reads its accuracies from the round's record.

    `acc` is its accuracy on all test samples, `by_class` the recall of each class; nan and () where it was
    not evaluated.
    """

    acc: Callable[[SimulatedRound], float]
    by_class: Callable[[SimulatedRound], tuple[float, ...]]

    def recall(
        self, classes: Sequence[int], fold: Callable[[Iterable[float]], float] = mean
    ) -> Callable[[SimulatedRound], float]:
        """Reads the mean recall of these classes, with equal weights; classes without samples are ignored."""

        def value(line: SimulatedRound) -> float:
            every = self.by_class(line)
            recalls = [every[n] for n in classes if n < len(every) and not isnan(every[n])]
            return fold(recalls) if recalls else nan

        return value


SERVED = Model(lambda line: line.eval_acc, lambda line: line.eval_acc_by_class)
TRAINED_HEAD = Model(lambda line: line.base_eval_acc, lambda line: line.base_eval_acc_by_class)
"""The next base model."""
CLOSED_FORM_HEAD = Model(
    lambda line: line.closed_form_eval_acc, lambda line: line.closed_form_eval_acc_by_class
)
"""The model with the closed-form head, also in rounds that serve the trained head because it is better."""


def accuracy(
    rounds: Sequence[SimulatedRound],
    axis: Axis = "time",
    value: Callable[[SimulatedRound], float] = SERVED.acc,
) -> Curve:
    """The accuracy `value` over what was spent on `axis`, for each round that has it."""
    values = np.array([value(line) for line in rounds], np.float64)
    finite = ~np.isnan(values)
    return Curve(spent(rounds, axis)[finite], values[finite])


def spent(rounds: Sequence[SimulatedRound], axis: Axis) -> NDArray[np.float64]:
    """The axis at the end of each round, (rounds,): its number, virtual seconds, joules, or bytes both ways.

    Energy and bytes are totals since the start of the run.
    """
    if axis == "rounds":
        return np.array([line.round for line in rounds], np.float64)
    if axis == "time":
        return np.array([line.closed_s for line in rounds], np.float64)
    costs = [line.energy_j if axis == "energy" else line.bytes_up + line.bytes_down for line in rounds]
    return np.cumsum(np.array(costs, np.float64))


def accuracy_by_class(logits: NDArray[np.floating[Any]], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """The recall of each class, (classes,); nan for a class without samples.

    logits (n, classes), y (n,). Ties go to the lower class.
    """
    classes = logits.shape[1]
    right = np.bincount(y[logits.argmax(axis=1) == y], minlength=classes)
    samples = np.bincount(y, minlength=classes)
    recalls: NDArray[np.float64] = np.full(classes, np.nan)
    return np.divide(right, samples, out=recalls, where=samples > 0)


@dataclass(frozen=True)
class BusyDevice:
    """The number of updates that one device worked on, and their total seconds from download to upload."""

    group: str
    asks: int
    seconds: float


@dataclass(frozen=True)
class UnheardWork:
    """What devices had spent on work that the end of the run cut off, which no round counts.

    `forward_passes`: compute in F.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    energy_j: float = 0.0
    compute_s: float = 0.0
    forward_passes: float = 0.0

    def __add__(self, ask: AskRecord) -> UnheardWork:
        return UnheardWork(
            self.bytes_up + ask.bytes_up,
            self.bytes_down + ask.bytes_down,
            self.energy_j + ask.energy_j,
            self.compute_s + ask.compute_s,
            self.forward_passes + ask.forward_passes,
        )


NOTHING_UNHEARD = UnheardWork()


@dataclass(frozen=True)
class StragglerCounts:
    """The devices of a group that were asked, and their asks; how many were stragglers.

    straggler_devices: those that were stragglers at least once.
    """

    devices: int
    straggler_devices: int
    asks: int
    straggler_asks: int

    def __add__(self, other: StragglerCounts) -> StragglerCounts:
        return StragglerCounts(
            self.devices + other.devices,
            self.straggler_devices + other.straggler_devices,
            self.asks + other.asks,
            self.straggler_asks + other.straggler_asks,
        )


NOBODY = StragglerCounts(0, 0, 0, 0)


@dataclass(frozen=True)
class AskCounts:
    """Totals of the asks of a run.

    counted: by device, how often its update counted; 0 for devices that were asked and never counted.
    outcomes: asks by (group, outcome), where the outcome is the kind that counted, or else the fate.
    kinds: counted updates by kind.
    busy: by device, without those that always sat out or rested.
    samples: samples of counted updates by kind.
    first_down: bytes of every device's first download, of the model and its graphs.
    refused: updates that the checks refused, by the reason.
    sat_out: by group, why its first device sat out.
    stragglers: by group, who lacked the memory or time for a full update.
    """

    asks: int
    counted: Mapping[str, int]
    outcomes: Mapping[tuple[str, str], int]
    kinds: Mapping[str, int]
    busy: Mapping[str, BusyDevice]
    samples: Mapping[str, int]
    first_down: int
    unheard: UnheardWork = NOTHING_UNHEARD
    refused: Mapping[str, int] = field(default_factory=dict)
    sat_out: Mapping[str, str] = field(default_factory=dict)
    stragglers: Mapping[str, StragglerCounts] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of the fleet, in alphabetical order."""
        return tuple(sorted({group for group, _ in self.outcomes}))


def tally(asks: Iterable[AskRecord]) -> AskCounts:
    """Counts the asks in one pass."""
    number = 0
    counted: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    first_down: dict[str, int] = {}
    spent: dict[str, list[float]] = {}
    groups: dict[str, str] = {}
    unheard = NOTHING_UNHEARD
    refused: Counter[str] = Counter()
    sat_out: dict[str, str] = {}
    straggler_asks, straggler_devices = Counter[str](), set[str]()
    for ask in asks:
        number += 1
        did_count = ask.fate == "counted"
        counted[ask.device] += did_count
        outcomes[ask.group, ask.kind if did_count else ask.fate] += 1
        kinds[ask.kind] += did_count
        samples[ask.kind] += did_count * ask.num_examples
        if ask.bytes_down:
            first_down.setdefault(ask.device, ask.bytes_down)
        if ask.fate == "unheard":
            unheard += ask
        if ask.fate == "refused":
            refused[ask.why] += 1
        if ask.fate == "sat out":
            sat_out.setdefault(ask.group, ask.why)
        if ask.straggler:
            straggler_asks[ask.group] += 1
            straggler_devices.add(ask.device)
        groups[ask.device] = ask.group
        if ask.fate not in ("sat out", "rested"):
            so_far = spent.setdefault(ask.device, [0, 0.0])
            so_far[0] += 1
            so_far[1] += ask.download_s + ask.compute_s + ask.upload_s
    busy = {device: BusyDevice(groups[device], int(n), seconds) for device, (n, seconds) in spent.items()}
    first = sum(first_down.values())
    return AskCounts(
        number,
        dict(counted),
        dict(outcomes),
        dict(+kinds),
        busy,
        dict(+samples),
        first,
        unheard,
        dict(refused),
        sat_out,
        _stragglers(groups, outcomes, straggler_devices, straggler_asks),
    )


def _stragglers(
    groups: Mapping[str, str], outcomes: Counter[tuple[str, str]], devices: set[str], asks: Counter[str]
) -> dict[str, StragglerCounts]:
    """The counts of each group, from the group of each device, and the devices and asks of stragglers."""
    number, late = Counter(groups.values()), Counter(groups[device] for device in devices)
    every: Counter[str] = Counter()
    for (group, _), n in outcomes.items():
        every[group] += n
    return {
        name: StragglerCounts(number[name], late[name], every[name], asks[name]) for name in sorted(number)
    }


@dataclass(frozen=True)
class Participation:
    """The participation of a fleet in a run.

    devices: the share of the fleet whose update ever counted.
    asks: the share of asks that counted.
    fairness: Jain's index of counted updates over the whole fleet, with devices that were never asked: 1 when
    all devices counted equally often, k/n when k of n devices did and the others never.
    """

    devices: float
    asks: float
    fairness: float


def participation(counts: Iterable[int], devices: int, asks: int) -> Participation:
    """Participation in a run.

    `counts`: how often each device that was asked counted; `devices`: those of the fleet; `asks`: all asks.
    """
    counts = tuple(counts)
    return Participation(
        devices=sum(count > 0 for count in counts) / devices if devices else nan,
        asks=sum(counts) / asks if asks else nan,
        fairness=jain(counts, devices),
    )


def jain(counts: Iterable[float], among: int) -> float:
    """Jain's fairness index (sum x)^2 / (n * sum x^2) over n = `among` devices (Jain et al. 1984).

    Devices that are not in `counts` have 0. nan when all have 0.
    """
    counts = tuple(counts)
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (among * squares) if squares else nan


def learning_efficiency(best_accuracy: float, train_seconds: float) -> float:
    """Learning efficiency: best test accuracy (0 to 1) per second of local training of all participants.

    Thesis 002, section 6.5 (figures 6.12 and 6.15). nan when nobody trained.
    """
    return best_accuracy / train_seconds if train_seconds > 0 else nan


VALUE_BYTES = 4
"""Bytes of a parameter (float32); seeds and scalars have one byte (section 4.2.1)."""
ONE_PASS, FORWARD_AND_BACKWARD = 1, 3
"""Compute of one sample in F: a forward pass, which is all that a head needs, and full training."""


class PaperCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one update of a kind costs: bytes, and passes (F) of each sample; None: no paper has a formula."""

    update_bytes: float
    sample_passes: float | None = None


def paper_cost(kind: AnyStrategy, values: int) -> PaperCost:
    """The cost of an update of this kind, whose tensors have this many float32 values."""
    return PaperCost(update_bytes(kind, values), sample_passes(kind))


def update_bytes(kind: AnyStrategy, values: int) -> float:
    """Bytes of one device and round.

    Zeroth-order scalars: 1 + 2 num_z (equation 6). Both stages of SLoRA: 4 for each value, which travels one
    way (equation 7: density times the model's size, then LoRA's). All others: 2 * 4 for each value, which
    travels both ways (equations 8 and 9).
    """
    if isinstance(kind, ZerothOrder):
        return 1 + 2 * kind.num_z
    one_way = isinstance(kind, SparseStage) or (isinstance(kind, Peft) and kind.trained == "lora")
    return (1 if one_way else 2) * VALUE_BYTES * values


def sample_passes(kind: AnyStrategy) -> float | None:
    """Passes of each local sample in a round: 3 E, or E if only the head is trained (equations 10 and 11).

    Class means take one. None for kinds that the thesis does not have.
    """
    if isinstance(kind, ClassMeans):
        return ONE_PASS
    if not isinstance(kind, FedAvg) or type(kind) not in (FedAvg, Peft):
        return None
    return kind.epochs * (ONE_PASS if kind.trained == "head" else FORWARD_AND_BACKWARD)
