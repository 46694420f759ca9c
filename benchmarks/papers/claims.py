"""Checks a paper's claims against our runs: differences or ratios between rows, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan

from device_runtime.simulation.compare.figures import SeedSpread, spread

from .measures import MEASURES, value_of
from .table import Column, Scale, SystemRow, Table, TableClaim

Values = Mapping[tuple[str, str], tuple[float, ...]]
"""The measure in plain units by row and column, seed by seed; nan: missing."""

POINT = 0.01


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on one claim in one column; `ours` is the difference (with a factor: the ratio) over seeds.

    `printed` is that of the paper's numbers, nan where they are not printed. The claim holds in `seeds` of
    `ours.n` seeds. `points`: the difference is in percentage points.
    """

    claim: TableClaim
    column: str
    points: bool
    ours: SeedSpread
    printed: float
    seeds: int
    holds: bool

    @property
    def known(self) -> bool:
        return self.ours.n > 0

    @property
    def words(self) -> str:
        """The verdict as text; not significant if the bound is in the 95% interval of the mean."""
        if not self.known:
            return "not run"
        low, high = self.ours.interval or (nan, nan)
        unsure = self.claim.within is None and low <= bound(self.claim) <= high
        return ("holds" if self.holds else "does not hold") + (", not significant" if unsure else "")


def verdicts(table: Table, scale: Scale, values: Values) -> tuple[ClaimVerdict, ...]:
    """The verdict on every claim, in every column of this scale that has the claim's rows."""
    columns = {column.id: column for column in table.columns_at(scale)}
    return tuple(
        _verdict(table, claim, columns[name], values)
        for claim in table.claims
        for name in _columns(table, scale, claim)
        if name in columns and (claim.fall is None or claim.fall[0] in columns)
    )


def _columns(table: Table, scale: Scale, claim: TableClaim) -> tuple[str, ...]:
    both = _rows(claim)
    there = {
        column.id: table.measure_of(column)
        for column in table.columns_at(scale)
        if both <= {row.name for row in table.rows_at(scale, column)}
    }
    if claim.fall is not None or claim.columns:
        named = claim.fall[1:] if claim.fall else claim.columns
        return tuple(name for name in named if name in there)
    return tuple(name for name, measure in there.items() if measure == table.measure)


def _rows(claim: TableClaim) -> set[str]:
    return {claim.better, claim.than, *([claim.towards] if claim.towards else [])}


def _verdict(table: Table, claim: TableClaim, column: Column, values: Values) -> ClaimVerdict:
    measure = MEASURES[table.measure_of(column)]
    points = measure.percent and not claim.factor
    size = POINT if points else 1.0
    ours = [each / size for each in _each(claim, column.id, values)]
    rows = {row.name: row for row in table.rows}
    printed = _each(claim, column.id, _printed(claim, column.id, rows))
    result = spread(ours)
    return ClaimVerdict(
        claim=claim,
        column=column.id,
        points=points,
        ours=result,
        printed=printed[0],
        seeds=sum(_holds(claim, each) for each in ours),
        holds=_holds(claim, result.mean),
    )


def _each(claim: TableClaim, column: str, values: Values) -> list[float]:
    """The claim's difference or ratio for each seed."""

    def pairs(where: str, row: str = claim.better) -> list[tuple[float, float]]:
        better, than = (values.get((each, where), ()) for each in (row, claim.than))
        return list(zip(better, than, strict=False))

    differences = [more - less for more, less in pairs(column)]
    if claim.towards:
        whole = [more - less for more, less in pairs(column, claim.towards)]
        return [_ratio(mine, all_of_it) for mine, all_of_it in zip(differences, whole, strict=False)]
    if claim.factor:
        return [_ratio(more, less) for more, less in pairs(column)]
    if claim.fall is None:
        return differences
    before = [more - less for more, less in pairs(claim.fall[0])]
    return [after - first for first, after in zip(before, differences, strict=False)]


def _ratio(more: float, less: float) -> float:
    return more / less if less else nan


def _printed(claim: TableClaim, column: str, rows: Mapping[str, SystemRow]) -> Values:
    wheres = (column, *(claim.fall or ()))
    return {
        (name, where): (value_of(rows[name].paper.get(where, "")),)
        for name in _rows(claim)
        for where in wheres
    }


def bound(claim: TableClaim) -> float:
    """The bound that the difference, or the ratio, must exceed."""
    return claim.factor or claim.margin


def _holds(claim: TableClaim, value: float) -> bool:
    if isnan(value):
        return False
    if claim.within is not None:
        return abs(value) <= claim.within
    return value >= claim.factor if claim.factor else value > claim.margin
