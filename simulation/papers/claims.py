"""What a paper claims, against the runs: differences between rows, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

from simulation.compare.figures import Spread, spread

from .measures import MEASURES
from .printed import value_of
from .table import Claim, Column, Row, Scale, Table

Values = Mapping[tuple[str, str], tuple[float, ...]]
"""By row and column, the measure in plain units, seed by seed; nan: not there."""

POINT = 0.01


@dataclass(frozen=True)
class Verdict:
    """Of one claim in one column. `ours` is the difference (with a factor: the ratio) over the seeds.

    `printed` is the same of the paper's numbers, nan where they are not printed; `seeds` of `ours.n` hold.
    Differences of percentages are in points.
    """

    claim: Claim
    column: str
    points: bool
    ours: Spread
    printed: float
    seeds: int
    holds: bool

    @property
    def known(self) -> bool:
        return self.ours.n > 0

    @property
    def words(self) -> str:
        """Holds, does not; and whether the distance from the bound is less than the spread over the seeds."""
        if not self.known:
            return "not run"
        close = self.ours.n > 1 and abs(self.ours.mean - bound(self.claim)) <= self.ours.sd
        unsure = ", within the spread" if close and self.claim.within is None else ""
        return ("holds" if self.holds else "does not hold") + unsure


def verdicts(table: Table, scale: Scale, values: Values) -> tuple[Verdict, ...]:
    """Of every claim in every column that is run at this scale with what the claim compares."""
    columns = {column.id: column for column in table.columns_at(scale)}
    return tuple(
        _verdict(table, claim, columns[name], values)
        for claim in table.claims
        for name in _columns(table, scale, claim)
        if name in columns and (claim.fall is None or claim.fall[0] in columns)
    )


def _columns(table: Table, scale: Scale, claim: Claim) -> tuple[str, ...]:
    both = {claim.better, claim.than}
    there = {
        column.id: table.measure_of(column)
        for column in table.columns_at(scale)
        if both <= {row.name for row in table.rows_at(scale, column)}
    }
    if claim.fall is not None or claim.columns:
        named = claim.fall[1:] if claim.fall else claim.columns
        return tuple(name for name in named if name in there)
    return tuple(name for name, measure in there.items() if measure == table.measure)


def _verdict(table: Table, claim: Claim, column: Column, values: Values) -> Verdict:
    measure = MEASURES[table.measure_of(column)]
    points = measure.percent and not claim.factor
    size = POINT if points else 1.0
    ours = [each / size for each in _each(claim, column.id, values)]
    rows = {row.name: row for row in table.rows}
    printed = _each(claim, column.id, _printed(claim, column.id, rows))
    result = spread(ours)
    return Verdict(
        claim=claim,
        column=column.id,
        points=points,
        ours=result,
        printed=printed[0],
        seeds=sum(_holds(claim, each) for each in ours),
        holds=_holds(claim, result.mean),
    )


def _each(claim: Claim, column: str, values: Values) -> list[float]:
    """The difference or ratio of each seed."""

    def pairs(where: str) -> list[tuple[float, float]]:
        better, than = (values.get((row, where), ()) for row in (claim.better, claim.than))
        return list(zip(better, than, strict=False))

    if claim.factor:
        return [more / less if less else float("nan") for more, less in pairs(column)]
    differences = [more - less for more, less in pairs(column)]
    if claim.fall is None:
        return differences
    before = [more - less for more, less in pairs(claim.fall[0])]
    return [after - first for first, after in zip(before, differences, strict=False)]


def _printed(claim: Claim, column: str, rows: Mapping[str, Row]) -> Values:
    wheres = (column, *(claim.fall or ()))
    return {
        (name, where): (value_of(rows[name].paper.get(where, "")),)
        for name in (claim.better, claim.than)
        for where in wheres
    }


def bound(claim: Claim) -> float:
    """What the difference, or the ratio, must exceed."""
    return claim.factor or claim.margin


def _holds(claim: Claim, value: float) -> bool:
    if isnan(value):
        return False
    if claim.within is not None:
        return abs(value) <= claim.within
    return value >= claim.factor if claim.factor else value > claim.margin
