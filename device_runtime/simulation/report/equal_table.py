"""Tables of accuracy at equal rounds, time, energy and bytes, of differences by seed, and of each class."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import nan

from device_runtime.simulation.compare.equal import LATEST, Equal, Row
from device_runtime.simulation.compare.figures import Spread, Summary, Terms
from device_runtime.simulation.compare.wording import BYTES, JOULE, digits, lasting, unit_for

from .table import PERCENT, POINTS, Measure, as_html, fitted, worded

MEAN = f"mean of the last {LATEST} evaluations"
PAIRED = "differences of these by seed, in percentage points: mean and 95% interval (Student's t)"


@dataclass(frozen=True)
class _Table:
    """Policies, or pairs of them, down; measures across; one such for each part of the classes."""

    title: str
    parts: Mapping[str, Mapping[str, Summary]]
    measures: tuple[Measure, ...]


def text(equal: Equal, at: Terms, wide: int | None = None) -> str:
    """One below the other: accuracies, differences, classes, and which runs keep no recalls."""
    blocks = []
    for table in _tables(equal, at):
        lines = [
            (part if place == 0 else "", policy, *_cells(mine, table.measures))
            for part, policies in table.parts.items()
            for place, (policy, mine) in enumerate(policies.items())
        ]
        heads = ("classes", "policy", *(measure.title for measure in table.measures))
        blocks.append(f"{table.title}\n\n{fitted((heads, *lines), wide, 2)}")
    if (of := _by_class(equal, at)) is not None:
        policies = of.parts[""]
        rows = [
            (each.title, *(_cells(mine, [each])[0] for mine in policies.values())) for each in of.measures
        ]
        blocks.append(f"{of.title}\n\n{fitted((('class', *policies), *rows), wide)}")
    return "\n\n".join([*blocks, *_lacking(equal)])


def html(equal: Equal, at: Terms) -> str:
    """The same; each table can be sorted."""
    blocks = []
    for table in filter(None, (*_tables(equal, at), _by_class(equal, at))):
        blocks.append(f"<h3>{escape(table.title[0].upper() + table.title[1:])}</h3>")
        for part, policies in table.parts.items():
            blocks += [f"<p>{escape(part)}</p>"] if part else []
            blocks.append(f'<div class="scroll sortable">{as_html(policies, table.measures)}</div>')
    return "\n".join([*blocks, *(f'<p class="muted">{escape(line)}.</p>' for line in _lacking(equal))])


def as_csv(equal: Equal) -> str:
    """Lines below those of `table.as_csv`; a difference is of the policy POLICY - OTHER."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for kind, rows in (("", equal.rows), ("class ", equal.by_class)):
        for row in rows:
            policy = f"{row.policy} - {row.against}" if row.against else row.policy
            for axis, each in row.at.items():
                known = (each.mean, each.sd) if each.n else ("", "")
                lines.writerow((policy, f"late_acc_at_{axis}, {kind}{row.part}", *known, each.n, each.of))
    return out.getvalue()


def _tables(equal: Equal, at: Terms) -> Iterator[_Table]:
    energy, joule = unit_for(at.energy_j, JOULE)
    volume, size = unit_for(at.bytes, BYTES)
    heads = {
        "rounds": (f"at {at.rounds} rounds", "rounds"),
        "time": (f"at {lasting(at.at_s)}", "virtual time"),
        "energy": (f"at {digits(at.energy_j / joule)} {energy}", "energy of all devices (modelled)"),
        "bytes": (f"at {digits(at.bytes / size)} {volume}", "bytes of all devices, up and down"),
    }
    own = [row for row in equal.rows if not row.against]
    paired = [row for row in equal.rows if row.against]
    for title, rows, units, best in (
        (f"accuracy at equal rounds, time, energy and bytes: {MEAN}", own, PERCENT, 1),
        (PAIRED, paired, POINTS, 0),
    ):
        measures = tuple(
            Measure(axis, head, f"at equal {what}: the least that all runs reached", units, best)
            for axis, (head, what) in heads.items()
        )
        if rows:
            yield _Table(title, _by_part(rows), measures)


def _by_class(equal: Equal, at: Terms) -> _Table | None:
    """Its only part has no name; classes are the measures. None where classes are not told one by one."""
    if not equal.by_class:
        return None
    policies: dict[str, dict[str, Spread]] = defaultdict(dict)
    for row in equal.by_class:
        policies[row.policy][row.part] = row.at["rounds"]
    unknown = Spread(nan, 0.0, 0, 0)
    classes = dict.fromkeys(row.part for row in equal.by_class)
    measures = tuple(Measure(name, name, f"recall of class {name}", PERCENT, 1) for name in classes)
    whole = {policy: {name: mine.get(name, unknown) for name in classes} for policy, mine in policies.items()}
    return _Table(f"recall of each class at {at.rounds} rounds: {MEAN}", {"": whole}, measures)


def _by_part(rows: Sequence[Row]) -> dict[str, dict[str, Summary]]:
    parts: dict[str, dict[str, Summary]] = defaultdict(dict)
    for row in rows:
        parts[row.part][row.title] = row.at
    return parts


def _cells(mine: Summary, measures: Sequence[Measure]) -> list[str]:
    return [worded(mine[measure.field], measure.units[0]) for measure in measures]


def _lacking(equal: Equal) -> list[str]:
    if not equal.lacking:
        return []
    return [
        f"no recall by class is kept of {', '.join(equal.lacking)}, which an older version ran: "
        "remove these folders to run them again"
    ]
