"""Tables of devices and of updates of finished runs: as records, text, CSV and pandas."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import ceil, isnan, nan
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from tabulate import tabulate

from device_runtime.models.bundles.targets import ACCURACY, metric_text
from device_runtime.simulation.compare.figures import (
    BYTES,
    DASH,
    JOULE,
    Units,
    digits,
    duration,
    unit_for,
)
from device_runtime.simulation.compare.plan import ComparisonPlan
from device_runtime.simulation.compare.run_folder import ASKS, DEVICES, RunName, read
from device_runtime.simulation.history.metrics import jain
from device_runtime.simulation.history.records import AskRecord, DeviceEvaluation
from device_runtime.simulation.scenarios.scenario import of_policy

if TYPE_CHECKING:
    from pandas import DataFrame

LISTED = 10_000
"""Devices of the largest fleet of which all are listed; of a larger one, those that were asked or tested."""
WORST = 0.1
"""The share of devices that the worst tenth is."""


@dataclass(frozen=True)
class DeviceFigures:
    """One device in one run: what it did in all of its rounds, and how well the model serves it.

    kinds: the number of its updates that counted, by kind.
    asks, contributions: how often it was asked, and how often its update counted.
    seconds: virtual, of downloads, work and uploads. energy_j, bytes_up, bytes_down: also of updates that did
    not count.
    train_loss: of its last update that counted; nan if there is none.
    samples, test_samples, accuracy, ..: as in `DeviceEvaluation`; 0 and nan without test samples of its own.
    """

    policy: str
    seed: int
    device: str
    group: str
    kinds: Mapping[str, int] = field(default_factory=dict)
    asks: int = 0
    contributions: int = 0
    seconds: float = 0.0
    energy_j: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    train_loss: float = nan
    samples: int = 0
    test_samples: int = 0
    accuracy: float = nan
    loss: float = nan
    personal_accuracy: float = nan
    personal_loss: float = nan


@dataclass(frozen=True)
class UpdateFigures:
    """One device that was asked for one update.

    round: in which it was asked; into: in which its update counts, 0 for none. variant: as "full epochs=2".
    samples: the number that the update counts; 0 if none came.
    seconds: virtual, from the request to the end of the device's part in it.
    loss: of training; norm: the Euclidean length of the update's change of the base (see `AskRecord.norm`).
    fate: counted, or why not: late, refused, sat out, .. (`AskOutcome`); why: more of it.
    """

    policy: str
    seed: int
    round: int
    into: int
    device: str
    group: str
    kind: str
    variant: str
    samples: int
    seconds: float
    energy_j: float
    bytes_up: int
    bytes_down: int
    loss: float
    norm: float
    fate: str
    why: str


@dataclass(frozen=True)
class DeviceSummary:
    """How evenly a model serves the devices that were tested, `devices` of them; nan where none was.

    accuracy: the mean over devices, each counts as one. worst_tenth: the mean of the worst tenth of them.
    spread: the standard deviation. These two are those of q-FFL (Li et al. 2020, Fair resource allocation in
    federated learning, section 4).
    fairness: Jain's index of the accuracies (Jain et al. 1984), 1 if all are equal.
    personal_accuracy: the mean with classifiers of their own, over the devices that have one.
    """

    devices: int
    accuracy: float
    worst_tenth: float
    spread: float
    fairness: float
    personal_accuracy: float

    @classmethod
    def of(cls, rows: Iterable[DeviceFigures]) -> DeviceSummary:
        """The summary of devices of one run or several."""
        rows = tuple(rows)
        values = sorted(row.accuracy for row in rows if not isnan(row.accuracy))
        personal = [row.personal_accuracy for row in rows if not isnan(row.personal_accuracy)]
        if not values:
            return cls(0, nan, nan, nan, nan, nan)
        worst = values[: ceil(WORST * len(values))]
        own = mean(personal) if personal else nan
        return cls(len(values), mean(values), mean(worst), pstdev(values), jain(values, len(values)), own)


R = TypeVar("R", DeviceFigures, UpdateFigures)


class RowTable(Sequence[R], Generic[R]):
    """Rows in a fixed order, which print as a short text."""

    row: ClassVar[type[Any]]

    def __init__(self, rows: Iterable[R]) -> None:
        self.rows: tuple[R, ...] = tuple(rows)

    @overload
    def __getitem__(self, place: int) -> R: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[R, ...]: ...
    def __getitem__(self, place: int | slice) -> R | tuple[R, ...]:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} rows>"

    def to_csv(self, path: str | Path) -> None:
        """Writes a row for each record, under the names of its fields; nan is empty. Raises OSError."""
        names = [each.name for each in fields(self.row)]
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(names)
            rows.writerows([cell(getattr(row, name)) for name in names] for row in self.rows)

    def to_pandas(self) -> DataFrame:
        """The same as a data frame. Raises ModuleNotFoundError without pandas."""
        return data_frame([asdict(row) for row in self.rows], [each.name for each in fields(self.row)])


class DeviceTable(RowTable[DeviceFigures]):
    """Every device of every run. `metric`: the name of what `accuracy` is, where it is another metric."""

    row = DeviceFigures

    def __init__(self, rows: Iterable[DeviceFigures], metric: str = ACCURACY) -> None:
        super().__init__(rows)
        self.metric = metric

    def summary(self, policy: str | None = None) -> DeviceSummary:
        """How evenly the models of all runs, or of those of a policy, serve their devices."""
        return DeviceSummary.of(row for row in self.rows if policy in (None, row.policy))

    def __str__(self) -> str:
        """A sentence for each policy, and a table of the groups of the fleet."""
        policies = dict.fromkeys(row.policy for row in self.rows)
        heads = ["policy", "group", "devices", "counted", "kinds", "seconds", "energy", "up", "down"]
        tested = any(row.test_samples for row in self.rows)
        heads += [self.metric, "worst tenth", "own head"] if tested else []
        lines = [self._line(*key, rows, tested) for key, rows in _grouped(self.rows).items()]
        sentences = [self._sentence(policy) for policy in policies]
        sides = ["left", "left", "right", "right", "left", *["right"] * (len(heads) - 5)]
        table = tabulate(lines, heads, disable_numparse=True, colalign=sides if lines else None)
        return "\n".join([*sentences, "", table])

    def _sentence(self, policy: str) -> str:
        rows = [row for row in self.rows if row.policy == policy]
        counted = sum(row.contributions > 0 for row in rows)
        text = f"{policy}: the updates of {counted:,} of {len(rows):,} devices counted"
        summary = DeviceSummary.of(rows)
        if not summary.devices:
            return f"{text}; their accuracy needs test samples of their own: device_test_share of the data"
        spread = f"{100 * summary.spread:.1f} points" if self.metric == ACCURACY else digits(summary.spread)
        text += f"; {self.metric} {self._text(summary.accuracy)} on the test samples of each, worst tenth "
        text += f"{self._text(summary.worst_tenth)}, spread {spread}, Jain's index {summary.fairness:.3f}"
        own = summary.personal_accuracy
        return text if isnan(own) else f"{text}; with classifiers of their own {self._text(own)}"

    def _text(self, value: float) -> str:
        return DASH if isnan(value) else metric_text(self.metric, value)

    def _line(self, policy: str, group: str, rows: Sequence[DeviceFigures], tested: bool) -> tuple[str, ...]:
        """The cells of a group: means over its devices, and the updates of all of them by kind."""
        kinds = Counter[str]()
        for row in rows:
            kinds.update(row.kinds)
        summary = DeviceSummary.of(rows)
        cells = (
            policy,
            group,
            f"{len(rows):,}",
            f"{mean(row.contributions > 0 for row in rows):.0%}",
            ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()) or DASH,
            duration(mean(row.seconds for row in rows)),
            _amount(mean(row.energy_j for row in rows), JOULE),
            _amount(mean(row.bytes_up for row in rows), BYTES),
            _amount(mean(row.bytes_down for row in rows), BYTES),
        )
        values = (summary.accuracy, summary.worst_tenth, summary.personal_accuracy)
        return (*cells, *map(self._text, values)) if tested else cells


class UpdateTable(RowTable[UpdateFigures]):
    """Every time that a device was asked for an update, in the order in which these ended."""

    row = UpdateFigures

    def __str__(self) -> str:
        """A sentence for each policy, and a table of what became of the updates of each kind."""
        heads = ("policy", "kind", "fate", "updates", "seconds", "energy", "up", "down", "loss", "norm")
        groups: dict[tuple[str, str, str], list[UpdateFigures]] = {}
        fates: dict[str, Counter[str]] = {}
        for row in self.rows:
            groups.setdefault((row.policy, row.kind, row.fate), []).append(row)
            fates.setdefault(row.policy, Counter()).update([row.fate])
        sentences = [
            f"{policy}: {counts.total():,} updates were asked for, {counts['counted']:,} counted"
            for policy, counts in fates.items()
        ]
        lines = [
            (
                *(key[0], key[1] or DASH, key[2]),
                f"{len(rows):,}",
                duration(mean(row.seconds for row in rows)),
                _amount(mean(row.energy_j for row in rows), JOULE),
                _amount(mean(row.bytes_up for row in rows), BYTES),
                _amount(mean(row.bytes_down for row in rows), BYTES),
                *(digits(_mean(getattr(row, name) for row in rows)) for name in ("loss", "norm")),
            )
            for key, rows in sorted(groups.items(), key=lambda item: list(fates).index(item[0][0]))
        ]
        sides = ["left"] * 3 + ["right"] * (len(heads) - 3)
        table = tabulate(lines, heads, disable_numparse=True, colalign=sides if lines else None)
        return "\n".join([*sentences, "", table])


def device_table(plan: ComparisonPlan, names: Sequence[RunName], metric: str = ACCURACY) -> DeviceTable:
    """The devices of these runs. Raises SimulationError for files that cannot be read."""
    return DeviceTable((row for name in names for row in _devices(plan, name)), metric)


def update_table(plan: ComparisonPlan, names: Sequence[RunName]) -> UpdateTable:
    """The updates of these runs. Raises SimulationError for files that cannot be read."""
    return UpdateTable(row for name in names for row in _updates(plan.of(name), name))


def cell(value: object) -> object:
    """A value in CSV: nan is empty; tuples and dicts are in one cell, joined by spaces."""
    if isinstance(value, tuple):
        return " ".join(str(cell(item)) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items())
    return "" if value != value else value


def data_frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> DataFrame:
    """A data frame of these rows. Raises ModuleNotFoundError without pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("data frames need pandas: pip install pandas", name=error.name) from None
    return pd.DataFrame(rows, columns=columns)


@dataclass
class _Spent:
    """What one device did so far."""

    group: str
    kinds: Counter[str] = field(default_factory=Counter)
    asks: int = 0
    seconds: float = 0.0
    energy_j: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    train_loss: float = nan

    def add(self, ask: AskRecord) -> None:
        self.asks += 1
        self.seconds += ask.download_s + ask.compute_s + ask.upload_s
        self.energy_j += ask.energy_j
        self.bytes_up += ask.bytes_up
        self.bytes_down += ask.bytes_down
        if ask.fate == "counted":
            self.kinds[ask.kind] += 1
            self.train_loss = ask.train_loss


def _devices(plan: ComparisonPlan, name: RunName) -> Iterator[DeviceFigures]:
    """The devices of a run, by name: all of the fleet, or of a larger one than LISTED those it knows of."""
    scenario = of_policy(plan.scenario, name.policy)
    fleet = scenario.fleet.draw(scenario.devices, name.seed)
    listed = range(len(fleet)) if len(fleet) <= LISTED else ()
    spent = {fleet.name(i): _Spent(fleet.group(i)) for i in listed}
    for ask in read(plan.of(name) / ASKS, AskRecord):
        spent.setdefault(ask.device, _Spent(ask.group)).add(ask)
    tests = _tests(plan.of(name))
    for device, test in tests.items():
        spent.setdefault(device, _Spent(test.group))
    for device, own in sorted(spent.items()):
        test_figures = asdict(tests[device]) if device in tests else {}
        yield DeviceFigures(
            policy=name.policy,
            seed=name.seed,
            device=device,
            group=own.group,
            kinds=dict(own.kinds),
            asks=own.asks,
            contributions=own.kinds.total(),
            seconds=own.seconds,
            energy_j=own.energy_j,
            bytes_up=own.bytes_up,
            bytes_down=own.bytes_down,
            train_loss=own.train_loss,
            **{key: value for key, value in test_figures.items() if key not in ("device", "group")},
        )


def _tests(folder: Path) -> dict[str, DeviceEvaluation]:
    """The test of each device of a run that has test samples of its own."""
    path = folder / DEVICES
    return {each.device: each for each in read(path, DeviceEvaluation)} if path.exists() else {}


def _updates(folder: Path, name: RunName) -> Iterator[UpdateFigures]:
    for ask in read(folder / ASKS, AskRecord):
        yield UpdateFigures(
            policy=name.policy,
            seed=name.seed,
            round=ask.round,
            into=ask.into,
            device=ask.device,
            group=ask.group,
            kind=ask.kind,
            variant=ask.form,
            samples=ask.num_examples,
            seconds=ask.ended_s - ask.asked_s,
            energy_j=ask.energy_j,
            bytes_up=ask.bytes_up,
            bytes_down=ask.bytes_down,
            loss=ask.train_loss,
            norm=ask.norm,
            fate=ask.fate,
            why=ask.why,
        )


def _grouped(rows: Iterable[DeviceFigures]) -> dict[tuple[str, str], list[DeviceFigures]]:
    """The rows of each policy and group, the groups in alphabetical order."""
    groups: dict[tuple[str, str], list[DeviceFigures]] = {}
    rows = tuple(rows)
    for policy in dict.fromkeys(row.policy for row in rows):
        own = [row for row in rows if row.policy == policy]
        for group in sorted({row.group for row in own}):
            groups[policy, group] = [row for row in own if row.group == group]
    return groups


def _amount(value: float, units: Units) -> str:
    name, size = unit_for(value, units)
    return f"{digits(value / size)} {name}"


def _mean(values: Iterable[float]) -> float:
    """The mean of those that are known; nan if none is."""
    numbers = [value for value in values if not isnan(value)]
    return mean(numbers) if numbers else nan
