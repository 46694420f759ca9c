"""What a report begins with: one sentence about the best policy, and a short table with a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Protocol

from device_runtime.models.bundles.targets import metric_text
from device_runtime.simulation.compare.equal import EVERYTHING, EqualTerms
from device_runtime.simulation.compare.figures import (
    BYTES,
    DASH,
    JOULE,
    ComparisonTerms,
    SeedSpread,
    Summary,
    duration,
    final_name,
    unit_for,
)
from device_runtime.simulation.history.metrics import Axis

from .table import (
    MEAN,
    PERCENT,
    PLAIN,
    Table,
    TableLine,
    best_places,
    figure_text,
    lead_text,
    metric_units,
    which_is_best,
)

MOST_FURTHER = 2
"""The most further metrics in the short table."""
NOTHING = SeedSpread(nan, nan, 0, 0)


class HasFigures(Protocol):
    """Compared runs: the terms, the figures by policy, and accuracies at equal terms."""

    @property
    def terms(self) -> ComparisonTerms: ...

    @property
    def summary(self) -> Mapping[str, Summary]: ...

    @property
    def equal(self) -> EqualTerms: ...


def sentence(of: HasFigures) -> str:
    """The best policy at equal time, and by how much it leads the next one.

    "mixed 96.8%, 2.9 [0.6, 5.2] points over fedavg at equal time (29 s)". Where a policy was not evaluated by
    then, policies are compared after equal rounds.
    """
    at, axis = of.terms, _axis(of)
    reached = {policy: each.mean for policy, each in _reached(of, axis).items() if each.n}
    ranked = sorted(reached, key=lambda policy: reached[policy], reverse=True)
    if not ranked:
        return f"nothing was evaluated in {at.rounds} rounds of {', '.join(of.summary)}"
    best, value = ranked[0], metric_text(at.metric, reached[ranked[0]])
    value = value if metric_units(at.metric) is PERCENT else f"{at.metric} {value}"
    if len(ranked) == 1:
        return f"{best} {value} after {at.rounds} rounds ({duration(at.at_s)} of virtual time)"
    where = f"equal time ({duration(at.at_s)})" if axis == "time" else f"equal rounds ({at.rounds})"
    after = ranked[1]
    if reached[best] == reached[after]:
        return f"{best} and {after} {value}, the same at {where}"
    nearest = f"{after}, the nearest," if len(ranked) > 2 else after
    return f"{best} {value}, {lead_text(lead_of(of, best, after), at.metric)} over {nearest} at {where}"


def lead_of(of: HasFigures, policy: str, other: str) -> SeedSpread:
    """The difference between two policies where the sentence compares them, by seed, as in the other tables.

    Policies of different comparisons have no seeds in common: then it is that of the means, without spread.
    """
    axis = _axis(of)
    for row in of.equal.rows:
        if row.part in EVERYTHING and {row.policy, row.against} == {policy, other}:
            each = row.at[axis]
            return each if row.policy == policy else replace(each, mean=-each.mean)
    means = _reached(of, axis)
    return SeedSpread(means[policy].mean - means[other].mean, nan, 1, 1)


def _axis(of: HasFigures) -> Axis:
    """The axis on which policies are compared: time, if all were evaluated by the equal time."""
    by_time = _reached(of, "time").values()
    return "time" if all(each.n for each in by_time) else "rounds"


def _reached(of: HasFigures, axis: Axis) -> dict[str, SeedSpread]:
    """The accuracy of each policy over all test samples, at the equal point of this axis."""
    rows = [row for row in of.equal.rows if row.part in EVERYTHING and not row.against]
    return {row.policy: row.at[axis] for row in rows}


def short_table(of: HasFigures, failed: Sequence[str] = ()) -> Table:
    """Policies down: the metric where they are compared and at the end, devices that counted, energy, bytes.

    Of further metrics it has the first at the end. failed: policies without figures, whose cells are empty.
    """
    metric, axis = metric_units(of.terms.metric), _axis(of)
    point = duration(of.terms.at_s) if axis == "time" else f"{of.terms.rounds} rounds"
    reached = _reached(of, axis)
    columns = (
        (f"{of.terms.metric} at {point}", "", metric, 1),
        ("at the end", "final_acc", metric, 1),
        *((name, final_name(name), PLAIN, which_is_best(name)) for name in of.terms.metrics[:MOST_FURTHER]),
        ("devices", "devices_that_counted", PERCENT, 1),
        ("energy", "energy_j", JOULE, -1),
        ("bytes", "bytes_moved", BYTES, -1),
    )
    cells: dict[str, list[str]] = {policy: [] for policy in of.summary}
    marks: list[frozenset[int]] = []
    for _, field, units, best in columns:
        spreads = [
            figures[field] if field else reached.get(policy, NOTHING)
            for policy, figures in of.summary.items()
        ]
        unit = unit_for(max((each.mean for each in spreads if each.n), default=0.0), units)
        for policy, each in zip(cells, spreads, strict=True):
            cells[policy].append(figure_text(each, unit))
        marks.append(best_places(spreads, best))
    lines = [
        TableLine((policy,), tuple(row), frozenset(n for n, places in enumerate(marks) if place in places))
        for place, (policy, row) in enumerate(cells.items())
    ]
    lines += [TableLine((policy,), (DASH,) * len(columns)) for policy in failed]
    return Table("", ("policy", *(head for head, *_ in columns)), tuple(lines))


def legend(of: HasFigures) -> str:
    """A sentence that says what the cells of the short table are."""
    seeds = max((figures["virtual_s"].of for figures in of.summary.values()), default=1)
    spread = f"; ±: deviation, [ ]: 95% interval of {seeds} seeds" if seeds > 1 else ""
    where = "equal time: where the first run ends" if _axis(of) == "time" else "equal rounds"
    return f"{where}, {MEAN}; devices: that ever counted; energy: modelled{spread}"
