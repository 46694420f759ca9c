"""The tables of a comparison, as text, HTML and CSV: figures by policy, equal terms, single classes."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isnan, nan
from types import MappingProxyType

from tabulate import tabulate

from device_runtime.models.bundles.targets import ACCURACY, metric_text
from device_runtime.simulation.compare.equal import LATEST, LESS, EqualRow, EqualTerms
from device_runtime.simulation.compare.figures import ComparisonTerms, SeedSpread, Summary, final_name
from device_runtime.simulation.compare.wording import (
    BYTES,
    DASH,
    JOULE,
    TIMES,
    Units,
    decimals,
    digits,
    duration,
    unit_for,
)

from .canvas import THEMED, stroke

PERCENT: Units = (("%", 0.01),)
PLAIN: Units = (("", 1.0),)
PER_HOUR: Units = (("%/h", 0.01 / 3600),)
POINTS: Units = (("points", 0.01),)
SIGNED: Units = (("signed", 1.0),)
"""Percentage points: cells have a sign in place of the unit, which the table's title names."""
PASSES: Units = (("TF", 1e12), ("GF", 1e9), ("MF", 1e6), ("kF", 1e3), ("F", 1.0))
NONE_FAILED: Mapping[str, str] = MappingProxyType({})
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


BEST = "of any round's served model; the test samples pick the round, so that chance adds to it"


def learning_rows(at: ComparisonTerms) -> tuple[TableRow, ...]:
    """The rows on what was learnt: accuracy, time, participation."""
    metric, units = at.metric, metric_units(at.metric)
    percent, target = units is PERCENT, DASH if isnan(at.target) else metric_text(metric, at.target)
    equal = f"{metric} at {duration(at.at_s)}"
    earliest = "of the served model at equal virtual time: the earliest end of all runs"
    counted = "Jain's index of counted updates per device: 1 when all devices counted equally often"
    efficiency = f"best {metric} by the time of local training of all devices (Shi 2025, 6.5)"
    return (
        TableRow("acc_at_equal_time", equal, earliest, units, 1),
        TableRow("final_acc", f"final {metric}", "of the model served after the last round", units, 1),
        TableRow("best_acc", f"best {metric} (test)", BEST, units, 1),
        *(_final(name) for name in at.metrics),
        TableRow("time_to_target_s", f"time to {target}", "virtual time until it is reached", TIMES, -1),
        TableRow("devices_that_counted", "devices that counted", "at least once, of the fleet", PERCENT, 1),
        TableRow("asks_that_counted", "asks that counted", "of all times a device was asked", PERCENT, 1),
        TableRow("fairness", "fairness", counted, PLAIN, 1),
        *(
            (TableRow("learning_efficiency", "learning efficiency", efficiency, PER_HOUR, 1),)
            if percent
            else ()
        ),
        *((TableRow("unopened", "updates not opened", UNOPENED, PERCENT, -1),) if at.masked else ()),
        *((TableRow("central_epsilon", "epsilon spent", CENTRAL, PLAIN, -1),) if at.noisy else ()),
    )


def metric_units(metric: str) -> Units:
    """The units in which a metric is shown: an accuracy in percent, others as numbers."""
    return PERCENT if metric.endswith(ACCURACY) else PLAIN


HIGHER = ("AUROC", "F1", "exact match")
"""Further metrics of which the highest value is the best; of errors it is the lowest."""


def _final(name: str) -> TableRow:
    best = 1 if name in HIGHER else -1
    meaning = "of the model served after the last round"
    return TableRow(final_name(name), f"final {name}", meaning, PLAIN, best)


def cost_rows() -> tuple[TableRow, ...]:
    """The rows on what it cost: time, bytes, energy, compute."""
    formula = "for each update that counted (Bernier 2024, equations 6 to 9)"
    passes = "in F: one forward pass of one sample (Bernier 2024, A.1), counted"
    wasted = "by devices whose update did not count, also because the run ended first"
    return (
        TableRow("virtual_s", "virtual time", "that all rounds took", TIMES),
        TableRow("bytes_up", "bytes up", "sent by all devices, counted", BYTES, -1),
        TableRow("bytes_down", "bytes down", "fetched by all devices, counted", BYTES, -1),
        TableRow("bytes_analytic", "bytes by formula", formula, BYTES),
        TableRow("energy_j", "energy (modelled)", "of all devices, by their profiles", JOULE, -1),
        TableRow("wasted_j", "of it wasted", wasted, JOULE, -1),
        TableRow("train_time_s", "local training", "of all devices together", TIMES),
        TableRow("forward_passes", "compute", passes, PASSES, -1),
    )


def text(
    summary: Mapping[str, Summary],
    at: ComparisonTerms,
    wide: int | None = None,
    failed: Sequence[str] = (),
) -> str:
    """The table as text: measures down, policies across; mean ± standard deviation over the seeds.

    failed: policies without figures.
    """
    rows: list[Sequence[str]] = [("", *summary, *failed)]
    return fitted_table(rows + rows_of(summary, at, failed), wide)


def rows_of(
    summary: Mapping[str, Summary], at: ComparisonTerms, failed: Sequence[str] = ()
) -> list[Sequence[str]]:
    """The cells of the table: a row for each measure, its title first, then a cell for each policy.

    The cells of policies that failed are empty.
    """
    rows: list[Sequence[str]] = []
    for measure in (*learning_rows(at), *cost_rows()):
        unit = _unit(measure, summary)
        figures = (figure_text(each[measure.field], unit) for each in summary.values())
        rows.append((measure.title, *figures, *(DASH for _ in failed)))
    return rows


def fitted_table(rows: Sequence[Sequence[str]], wide: int | None = None, left: int = 1) -> str:
    """A text table; the first row is the head, and the first `left` columns name the rows.

    Columns that do not fit in `wide` characters go into further tables below.
    """
    heads = rows[0]
    for count in range(len(heads) - left, 0, -1):
        parts = [range(first, min(first + count, len(heads))) for first in range(left, len(heads), count)]
        tables = [_table([[row[n] for n in (*range(left), *part)] for row in rows], left) for part in parts]
        if wide is None or count == 1 or all(len(each.splitlines()[1]) <= wide for each in tables):
            return "\n\n".join(tables)
    return ""


def _table(rows: Sequence[Sequence[str]], left: int) -> str:
    sides = ["left" if column < left else "right" for column in range(len(rows[0]))]
    return tabulate(rows[1:], rows[0], disable_numparse=True, colalign=sides)


def as_csv(summary: Mapping[str, Summary]) -> str:
    """CSV with a line for each policy and figure, in plain units (shares, seconds, bytes, joules).

    Unknown values are empty.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("policy", "figure", "mean", "sd", "seeds", "of"))
    for policy, figures in summary.items():
        for name, each in figures.items():
            table.writerow((policy, name, *_known(each), each.n, each.of))
    return out.getvalue()


def _known(each: SeedSpread) -> tuple[float | str, ...]:
    """Mean and standard deviation; empty where they are unknown."""
    return tuple("" if isnan(value) else value for value in (each.mean, each.sd))


def as_html(
    summary: Mapping[str, Summary], measures: Sequence[TableRow], failed: Mapping[str, str] = NONE_FAILED
) -> str:
    """The table as sortable HTML: policies down, measures across; the best of each measure is marked.

    failed: the reasons of policies without figures.
    """
    rows = []
    for policy, figures in summary.items():
        cells = "".join(_cell(figures[m.field], _unit(m, summary), _best(m, summary)) for m in measures)
        swatch = f'<span class="swatch" style="background:{_colour(policy)}"></span>'
        rows.append(f'<tr><th scope="row">{swatch}{escape(policy)}</th>{cells}</tr>')
    for policy, why in failed.items():
        empty = f'<td data-v="nan" title="{escape(why)}">{DASH}</td>' * len(measures)
        rows.append(f'<tr><th scope="row" title="{escape(why)}">{escape(policy)} (failed)</th>{empty}</tr>')
    heads = "".join(_head(measure.title, measure.meaning) for measure in measures)
    return (
        f"<table><thead><tr>{_head('policy', '')}{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


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


def _unit(measure: TableRow, summary: Mapping[str, Summary]) -> tuple[str, float]:
    """One unit for all policies, so that they can be compared at a glance."""
    means = [s[measure.field].mean for s in summary.values() if not isnan(s[measure.field].mean)]
    return unit_for(max(means, default=0.0), measure.units)


def _head(title: str, meaning: str) -> str:
    return f'<th scope="col" aria-sort="none" title="{escape(meaning)}"><button>{escape(title)}</button></th>'


def _cell(each: SeedSpread, unit: tuple[str, float], best: float) -> str:
    mark = ' class="best"' if each.mean == best else ""
    return f'<td data-v="{each.mean:.9g}"{mark}>{escape(figure_text(each, unit))}</td>'


def _colour(policy: str) -> str:
    colour = stroke(policy.partition(LESS)[0]).colour
    return f"var(--{THEMED[colour]})" if colour in THEMED else colour


def _best(measure: TableRow, summary: Mapping[str, Summary]) -> float:
    """The value to mark as the best; nan where none is better, or the measure has no best."""
    means = [s[measure.field].mean for s in summary.values() if not isnan(s[measure.field].mean)]
    if not measure.best or len(means) < 2 or min(means) == max(means):
        return float("nan")
    return max(means) if measure.best > 0 else min(means)


MEAN = f"mean of the last {LATEST} evaluations"
IN_POINTS = ", in percentage points"
PAIRED = f"differences of these by seed{IN_POINTS}: mean and 95% interval (Student's t)"


@dataclass(frozen=True)
class _Table:
    """A table of policies (or pairs of them) down and measures across, for each part of the classes."""

    title: str
    parts: Mapping[str, Mapping[str, Summary]]
    measures: tuple[TableRow, ...]


def equal_text(equal: EqualTerms, at: ComparisonTerms, wide: int | None = None) -> str:
    """The tables at equal terms as text: accuracies, differences, classes, and runs without recalls."""
    blocks = []
    for table in _tables(equal, at):
        lines = [
            (part if place == 0 else "", policy, *_cells(summary, table.measures))
            for part, policies in table.parts.items()
            for place, (policy, summary) in enumerate(policies.items())
        ]
        heads = ("classes", "policy", *(measure.title for measure in table.measures))
        blocks.append(f"{table.title}\n\n{fitted_table((heads, *lines), wide, 2)}")
    if (of := _by_class(equal, at)) is not None:
        policies = of.parts[""]
        rows = [(each.title, *(_cells(s, [each])[0] for s in policies.values())) for each in of.measures]
        blocks.append(f"{of.title}\n\n{fitted_table((('class', *policies), *rows), wide)}")
    return "\n\n".join([*blocks, *_lacking(equal)])


def equal_html(equal: EqualTerms, at: ComparisonTerms) -> str:
    """The tables at equal terms as sortable HTML."""
    blocks = []
    for table in filter(None, (*_tables(equal, at), _by_class(equal, at))):
        blocks.append(f"<h3>{escape(table.title[0].upper() + table.title[1:])}</h3>")
        for part, policies in table.parts.items():
            blocks += [f"<p>{escape(part)}</p>"] if part else []
            blocks.append(f'<div class="scroll sortable">{as_html(policies, table.measures)}</div>')
    return "\n".join([*blocks, *(f'<p class="muted">{escape(line)}.</p>' for line in _lacking(equal))])


def equal_csv(equal: EqualTerms) -> str:
    """CSV lines that go below those of `as_csv`; a difference has the policy "POLICY - OTHER"."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for kind, rows in (("", equal.rows), ("class ", equal.by_class)):
        for row in rows:
            policy = f"{row.policy} - {row.against}" if row.against else row.policy
            for axis, each in row.at.items():
                figure = f"late_acc_at_{axis}, {kind}{row.part}"
                lines.writerow((policy, figure, *_known(each), each.n, each.of))
    return out.getvalue()


def _tables(equal: EqualTerms, at: ComparisonTerms) -> Iterator[_Table]:
    energy, joule = unit_for(at.energy_j, JOULE)
    volume, size = unit_for(at.bytes, BYTES)
    heads = {
        "rounds": (f"at {at.rounds} rounds", "rounds"),
        "time": (f"at {duration(at.at_s)}", "virtual time"),
        "energy": (f"at {digits(at.energy_j / joule)} {energy}", "energy of all devices (modelled)"),
        "bytes": (f"at {digits(at.bytes / size)} {volume}", "bytes of all devices, up and down"),
    }
    own = [row for row in equal.rows if not row.against]
    paired = [row for row in equal.rows if row.against]
    of_metric = metric_units(at.metric)
    percent = of_metric is PERCENT
    differences, points = (PAIRED, POINTS) if percent else (PAIRED.replace(IN_POINTS, ""), SIGNED)
    for title, rows, units, best in (
        (f"{at.metric} at equal rounds, time, energy and bytes: {MEAN}", own, of_metric, 1),
        (differences, paired, points, 0),
    ):
        measures = tuple(
            TableRow(axis, head, f"at equal {what}: the least that all runs reached", units, best)
            for axis, (head, what) in heads.items()
        )
        if rows:
            yield _Table(title, _by_part(rows), measures)


def _by_class(equal: EqualTerms, at: ComparisonTerms) -> _Table | None:
    """The table of single classes, which are its measures; None where classes are not shown one by one."""
    if not equal.by_class:
        return None
    policies: dict[str, dict[str, SeedSpread]] = defaultdict(dict)
    for row in equal.by_class:
        policies[row.policy][row.part] = row.at["rounds"]
    unknown = SeedSpread(nan, 0.0, 0, 0)
    classes = dict.fromkeys(row.part for row in equal.by_class)
    measures = tuple(TableRow(name, name, f"recall of class {name}", PERCENT, 1) for name in classes)
    whole = {policy: {name: row.get(name, unknown) for name in classes} for policy, row in policies.items()}
    return _Table(f"recall of each class at {at.rounds} rounds: {MEAN}", {"": whole}, measures)


def _by_part(rows: Sequence[EqualRow]) -> dict[str, dict[str, Summary]]:
    parts: dict[str, dict[str, Summary]] = defaultdict(dict)
    for row in rows:
        parts[row.part][row.title] = row.at
    return parts


def _cells(summary: Summary, measures: Sequence[TableRow]) -> list[str]:
    return [figure_text(summary[measure.field], measure.units[0]) for measure in measures]


def _lacking(equal: EqualTerms) -> list[str]:
    if not equal.lacking:
        return []
    return [
        f"no recall by class is kept of {', '.join(equal.lacking)}, which an older version ran: "
        "remove these folders to run them again"
    ]
