"""The tables of a comparison, as text and as HTML: figures by policy, equal terms, single classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import isnan, nan
from types import MappingProxyType

from tabulate import tabulate

from device_runtime.models.bundles.targets import ACCURACY, metric_text
from device_runtime.models.training.metrics import higher_is_better
from device_runtime.simulation.compare.equal import LESS, EqualRow, EqualTerms
from device_runtime.simulation.compare.figures import (
    BYTES,
    DASH,
    JOULE,
    LATEST,
    TIMES,
    ComparisonTerms,
    SeedSpread,
    Summary,
    Units,
    decimals,
    digits,
    duration,
    final_name,
    unit_for,
)

PERCENT: Units = (("%", 0.01),)
PLAIN: Units = (("", 1.0),)
PACES: Units = (("%/ms", 10.0), ("%/s", 0.01), ("%/min", 0.01 / 60), ("%/h", 0.01 / 3600))
POINTS: Units = (("points", 0.01),)
SIGNED: Units = (("signed", 1.0),)
"""Percentage points: cells have a sign in place of the unit, which the table's title names."""
PASSES: Units = (("TF", 1e12), ("GF", 1e9), ("MF", 1e6), ("kF", 1e3), ("F", 1.0))
NO_COLOURS: Mapping[str, str] = MappingProxyType({})
UNOPENED = "masked updates in sums of too few devices, of those that came in time and were valid"
CENTRAL = "by central noise, on all that one device sent"


@dataclass(frozen=True)
class TableRow:
    """A row of the table: a field of `RunFigures`, its title and its meaning.

    `best`: 1 if the highest value is the best, -1 if the lowest is, 0 if none is.
    """

    field: str
    title: str
    meaning: str
    units: Units
    best: int = 0


MEAN = f"mean of the last {LATEST} evaluations"
BEST = "of any round's served model; the test samples pick the round, so that chance adds to it"


HIGHER, LOWER = ("AUROC", "F1", "exact match"), ("RMSE", "MAE", "threshold")
"""Further metrics of a loss of which the highest, or the lowest, value is the best; of each column, too."""


def measures(at: ComparisonTerms) -> tuple[TableRow, ...]:
    """The rows of the main table: what was learnt (accuracy, time, participation), then what it cost."""
    metric, units = at.metric, metric_units(at.metric)
    percent, target = units is PERCENT, DASH if isnan(at.target) else metric_text(metric, at.target)
    equal = f"{metric} at {duration(at.at_s)}"
    earliest = f"at equal virtual time, the earliest end of all runs: {MEAN} until then"
    last = "of the model served after the last round"
    counted = "Jain's index of counted updates per device: 1 when all devices counted equally often"
    efficiency = f"best {metric} by the time of local training of all devices (Shi 2025, 6.5)"
    formula = "for each update that counted (Bernier 2024, equations 6 to 9)"
    passes = "in F: one forward pass of one sample (Bernier 2024, A.1), counted"
    wasted = "by devices whose update did not count, also because the run ended first"
    rows = [
        TableRow("acc_at_equal_time", equal, earliest, units, 1),
        TableRow("final_acc", f"final {metric}", last, units, 1),
        TableRow("best_acc", f"best {metric} (test)", BEST, units, 1),
        *(
            TableRow(final_name(name), f"final {name}", last, PLAIN, which_is_best(name))
            for name in at.metrics
        ),
        TableRow("time_to_target_s", f"time to {target}", "virtual time until it is reached", TIMES, -1),
        TableRow("devices_that_counted", "devices that counted", "at least once, of the fleet", PERCENT, 1),
        TableRow("asks_that_counted", "asks that counted", "of all times a device was asked", PERCENT, 1),
        TableRow("fairness", "fairness", counted, PLAIN, 1),
    ]
    if percent:
        rows.append(TableRow("learning_efficiency", "learning efficiency", efficiency, PACES, 1))
    if at.masked:
        rows.append(TableRow("unopened", "updates not opened", UNOPENED, PERCENT, -1))
    if at.noisy:
        rows.append(TableRow("central_epsilon", "epsilon spent", CENTRAL, PLAIN, -1))
    return (
        *rows,
        TableRow("virtual_s", "virtual time", "that all rounds took", TIMES),
        TableRow("bytes_up", "bytes up", "sent by all devices, counted", BYTES, -1),
        TableRow("bytes_down", "bytes down", "fetched by all devices, counted", BYTES, -1),
        TableRow("bytes_analytic", "bytes by formula", formula, BYTES),
        TableRow("energy_j", "energy (modelled)", "of all devices, by their profiles", JOULE, -1),
        TableRow("wasted_j", "of it wasted", wasted, JOULE, -1),
        TableRow("train_time_s", "local training", "of all devices together", TIMES),
        TableRow("forward_passes", "compute", passes, PASSES, -1),
    )


def which_is_best(metric: str) -> int:
    """As `TableRow.best`, of a further metric; 0 for one of the user's own."""
    higher = higher_is_better(metric)
    if metric in HIGHER or higher:
        return 1
    return -1 if higher is False or metric.startswith(LOWER) else 0


def metric_units(metric: str) -> Units:
    """The units in which a metric is shown: an accuracy in percent, others as numbers."""
    return PERCENT if metric.endswith(ACCURACY) else PLAIN


@dataclass(frozen=True)
class TableLine:
    """A line of a table: its labels, its cells as text, the places of the best of them, and its meaning."""

    labels: tuple[str, ...]
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table that is shown as text and as HTML. The first heads are those of the labels."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[TableLine, ...]

    def text(self, wide: int | None = None) -> str:
        """The table as text, without its title.

        Columns that do not fit in `wide` characters go into further tables below.
        """
        left = len(self.lines[0].labels)
        for count in range(len(self.heads) - left, 0, -1):
            firsts = range(left, len(self.heads), count)
            parts = [self._part(left, range(first, min(first + count, len(self.heads)))) for first in firsts]
            if wide is None or count == 1 or all(len(part.splitlines()[1]) <= wide for part in parts):
                return "\n\n".join(parts)
        return ""

    def _part(self, left: int, columns: range) -> str:
        rows = [(*line.labels, *(line.cells[column - left] for column in columns)) for line in self.lines]
        heads = [*self.heads[:left], *(self.heads[column] for column in columns)]
        sides = ["left"] * left + ["right"] * len(columns)
        return tabulate(rows, heads, disable_numparse=True, colalign=sides)

    def html(self, colours: Mapping[str, str] = NO_COLOURS) -> str:
        """The table as HTML, without its title; a label or head that begins with a policy has its colour."""
        heads = "".join(f'<th scope="col">{_named(head, colours)}</th>' for head in self.heads)
        rows = []
        for line in self.lines:
            labels = "".join(f'<th scope="row">{_named(label, colours)}</th>' for label in line.labels)
            marks = [' class="best"' if place in line.best else "" for place in range(len(line.cells))]
            cells = "".join(f"<td{m}>{escape(c)}</td>" for m, c in zip(marks, line.cells, strict=True))
            rows.append(f'<tr title="{escape(line.meaning)}">{labels}{cells}</tr>')
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _named(name: str, colours: Mapping[str, str]) -> str:
    colour = colours.get(name.partition(LESS)[0])
    swatch = f'<span class="swatch" style="background:{colour}"></span>' if colour else ""
    return f"{swatch}{escape(name)}"


def main_table(summary: Mapping[str, Summary], at: ComparisonTerms, failed: Sequence[str] = ()) -> Table:
    """Measures down, policies across: mean ± standard deviation over the seeds.

    failed: policies without figures, whose cells are empty. A measure that no policy has gets no line.
    """
    lines = []
    for measure in measures(at):
        if summary and not any(figures[measure.field].n for figures in summary.values()):
            continue
        line = _line((measure.title,), measure, [figures[measure.field] for figures in summary.values()])
        lines.append(replace(line, cells=(*line.cells, *(DASH for _ in failed))))
    return Table("", ("", *summary, *failed), tuple(lines))


def _line(labels: tuple[str, ...], measure: TableRow, spreads: Sequence[SeedSpread]) -> TableLine:
    """A line of one measure, in one unit, so that policies can be compared at a glance."""
    unit = unit_for(max((each.mean for each in spreads if each.n), default=0.0), measure.units)
    cells = tuple(figure_text(each, unit) for each in spreads)
    return TableLine(labels, cells, best_places(spreads, measure.best), measure.meaning)


def best_places(spreads: Sequence[SeedSpread], best: int) -> frozenset[int]:
    """The places of the best; none where no value is better, or the measure has no best."""
    means = [each.mean for each in spreads if each.n]
    if not best or len(means) < 2 or min(means) == max(means):
        return frozenset()
    value = max(means) if best > 0 else min(means)
    return frozenset(place for place, each in enumerate(spreads) if each.mean == value)


def figure_text(each: SeedSpread, unit: tuple[str, float]) -> str:
    """A figure as text: mean ± standard deviation in this unit, and the number of seeds if some lack it.

    A difference in points has its 95% interval in place of the deviation.
    """
    if isnan(each.mean):
        return DASH
    name, size = unit
    mean = each.mean / size
    difference = name in ("points", "signed")
    places = 1 if name in ("%", "points") else decimals(mean)
    suffix = name if name == "%" else "" if not name or difference else f" {name}"
    sign = "+" if difference else ""
    mean = round(mean, places) + 0.0  # never -0.0
    amount = f"{mean:{sign},.{places}f}"
    if difference:
        amount += f" {interval(each, size, places)}"
    elif each.n > 1:
        amount += f" ± {each.sd / size:,.{places}f}"
    count = f" ({each.n} of {each.of})" if each.n < each.of else ""
    return f"{amount}{suffix}{count}"


def interval(each: SeedSpread, size: float, places: int) -> str:
    """The 95% interval of a mean difference, in units of this size: "[+1.2, +3.4]"; one seed has none."""
    if each.interval is None:
        return "(no interval)"
    low, high = (round(end / size, places) + 0.0 for end in each.interval)
    return f"[{low:+,.{places}f}, {high:+,.{places}f}]"


def lead_text(ahead: SeedSpread, metric: str) -> str:
    """A mean difference as text, of an accuracy in points, with its 95% interval: "2.9 [0.6, 5.2] points"."""
    percent = metric.endswith(ACCURACY)
    unit, size, places = (" points", 0.01, 1) if percent else ("", 1.0, decimals(ahead.mean))
    low, high = (end / size for end in ahead.interval) if ahead.interval else (nan, nan)
    ends = "" if isnan(low) else f" [{low + 0.0:.{places}f}, {high + 0.0:.{places}f}]"
    return f"{ahead.mean / size:.{places}f}{ends}{unit}"


IN_POINTS = ", in percentage points"
PAIRED = f"differences of these by seed{IN_POINTS}: mean and 95% interval (Student's t)"


def equal_tables(equal: EqualTerms, at: ComparisonTerms) -> Iterator[Table]:
    """The tables at equal terms: accuracies, differences by seed, and recalls of single classes."""
    energy, joule = unit_for(at.energy_j, JOULE)
    volume, size = unit_for(at.bytes, BYTES)
    heads = {
        "rounds": f"at {at.rounds} rounds",
        "time": f"at {duration(at.at_s)}",
        "energy": f"at {digits(at.energy_j / joule)} {energy}",
        "bytes": f"at {digits(at.bytes / size)} {volume}",
    }
    of_metric = metric_units(at.metric)
    percent = of_metric is PERCENT
    differences, points = (PAIRED, POINTS) if percent else (PAIRED.replace(IN_POINTS, ""), SIGNED)
    title = f"{at.metric} at equal rounds, time, energy and bytes: {MEAN}"
    for caption, paired, units in ((title, False, of_metric), (differences, True, points)):
        rows = [row for row in equal.rows if bool(row.against) == paired]
        if rows:
            lines = _by_part(rows, tuple(heads), units[0], 0 if paired else 1)
            yield Table(caption, ("classes", "policy", *heads.values()), tuple(lines))
    if equal.by_class:
        yield _by_class(equal, at)


def _by_part(
    rows: Sequence[EqualRow], axes: Sequence[str], unit: tuple[str, float], best: int
) -> Iterator[TableLine]:
    """The lines of each part of the classes, which its first line names; the best is that of the part."""
    parts: dict[str, list[EqualRow]] = {}
    for row in rows:
        parts.setdefault(row.part, []).append(row)
    for part, own in parts.items():
        marks = [best_places([row.at[axis] for row in own], best) for axis in axes]
        for place, row in enumerate(own):
            cells = tuple(figure_text(row.at[axis], unit) for axis in axes)
            marked = frozenset(column for column, places in enumerate(marks) if place in places)
            yield TableLine((part if place == 0 else "", row.title), cells, marked)


def _by_class(equal: EqualTerms, at: ComparisonTerms) -> Table:
    """The recall of single classes at equal rounds: classes down, policies across."""
    recalls = {(row.policy, row.part): row.at["rounds"] for row in equal.by_class}
    policies = tuple(dict.fromkeys(policy for policy, _ in recalls))
    unknown = SeedSpread(nan, 0.0, 0, 0)
    lines = []
    for name in dict.fromkeys(part for _, part in recalls):
        measure = TableRow(name, name, "", PERCENT, 1)
        lines.append(_line((name,), measure, [recalls.get((policy, name), unknown) for policy in policies]))
    title = f"recall of each class at {at.rounds} rounds: {MEAN}"
    return Table(title, ("class", *policies), tuple(lines))


def lacking(equal: EqualTerms) -> str:
    """A sentence about runs without recalls by class; empty where all have them."""
    if not equal.lacking:
        return ""
    return (
        f"no recall by class is kept of {', '.join(equal.lacking)}, which an older version ran: "
        "remove these folders to run them again"
    )
