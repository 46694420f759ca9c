"""Checks a paper's claims against our runs: differences or ratios between rows, seed by seed.

A claim holds if the 95% interval of the mean (Student's t, paired by seed) lies beyond its bound and most
seeds agree; it fails if that is so the other way round; else it is not shown. Fewer than three seeds show
nothing, and neither do rows that are all at chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from typing import Literal

from device_runtime.simulation.compare.figures import SeedSpread, spread

from .measures import MEASURES, value_of
from .table import Column, Scale, SystemRow, Table, TableClaim

Values = Mapping[tuple[str, str], tuple[float, ...]]
"""The measure in plain units by row and column, seed by seed; nan: missing."""

POINT = 0.01
SEEDS = 3
"""The fewest seeds that show anything."""
AT_CHANCE = 0.03
"""Accuracies up to so much above chance show nothing."""
Verdict = Literal["holds", "fails", "not shown", "at chance", "not run"]


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on one claim in one column.

    `ours`: the difference over seeds, or with a factor the ratio, whose mean is that of the means. `printed`
    is that of the paper's numbers, nan where they are not printed. The claim holds in `seeds` of `ours.n`
    seeds, and for their mean if `holds`. `points`: the difference is in percentage points. `at_chance`: all
    its rows are.
    """

    claim: TableClaim
    column: str
    points: bool
    ours: SeedSpread
    printed: float
    seeds: int
    holds: bool
    at_chance: bool = False

    @property
    def is_known(self) -> bool:
        return self.ours.n > 0

    @property
    def verdict(self) -> Verdict:
        if not self.is_known:
            return "not run"
        if self.at_chance:
            return "at chance"
        agree = self.seeds if self.holds else self.ours.n - self.seeds
        if self.ours.n < SEEDS or not _beyond(self) or 2 * agree <= self.ours.n:
            return "not shown"
        return "holds" if self.holds else "fails"

    @property
    def words(self) -> str:
        """The verdict as text, with the number of seeds if these are too few."""
        few = self.verdict == "not shown" and self.ours.n < SEEDS
        return f"{self.verdict}: {self.ours.n} of {SEEDS} seeds" if few else self.verdict


def _beyond(each: ClaimVerdict) -> bool:
    """Whether the whole interval of the mean is on one side of the claim's bound, or bounds."""
    low, high = each.ours.interval or (nan, nan)
    if each.claim.within is None:
        return not low <= bound(each.claim) <= high
    ends = -each.claim.within, each.claim.within
    return all(ends[0] <= end <= ends[1] for end in (low, high)) or high < ends[0] or low > ends[1]


def verdicts(
    table: Table, scale: Scale, values: Values, chance: Mapping[str, float] | None = None
) -> tuple[ClaimVerdict, ...]:
    """The verdict on every claim, in every column of this scale that has the claim's rows.

    `chance` is the accuracy of guessing, by column; columns without it have no chance.
    """
    columns = {column.id: column for column in table.columns_at(scale)}
    return tuple(
        _verdict(table, claim, columns[name], values, (chance or {}).get(name, nan))
        for claim, names in claims(table, scale)
        for name in names
        if name in columns and (claim.fall is None or claim.fall[0] in columns)
    )


def claims(table: Table, scale: Scale) -> Iterable[tuple[TableClaim, tuple[str, ...]]]:
    """All claims with their columns: those that the table names, then those of its orderings."""
    named = [(claim, _columns(table, scale, claim)) for claim in table.claims]
    yield from named
    plain = {
        (claim.better, claim.than, column) for claim, columns in named if _plain(claim) for column in columns
    }
    others: dict[tuple[str, str], list[str]] = {}
    for column in table.columns_at(scale):
        for pair in (pair for ordering in table.orderings for pair in pairwise(ordering)):
            better, than = _as_printed(table, column, pair)
            claim = TableClaim(text="", better=better, than=than)
            if (better, than, column.id) in plain or column.id not in _columns(table, scale, claim):
                continue
            if better != than:
                plain.add((better, than, column.id))
                others.setdefault((better, than), []).append(column.id)
    titles = {row.name: row.title for row in table.rows}
    for (better, than), columns in others.items():
        yield (
            TableClaim(text=f"{titles[better]} over {titles[than]}", better=better, than=than),
            tuple(columns),
        )


def _plain(claim: TableClaim) -> bool:
    """Whether the claim is an ordering and no more."""
    return not (claim.margin or claim.factor or claim.fall or claim.towards) and claim.within is None


def _as_printed(table: Table, column: Column, pair: tuple[str, str]) -> tuple[str, str]:
    """The pair, the larger printed number first; the same row twice if they are equal or not printed."""
    rows = {row.name: value_of(row.paper.get(column.id, "")) for row in table.rows}
    first, second = pair
    if isnan(rows[first]) or isnan(rows[second]) or rows[first] == rows[second]:
        return first, first
    return pair if rows[first] > rows[second] else (second, first)


def _columns(table: Table, scale: Scale, claim: TableClaim) -> tuple[str, ...]:
    both = _rows(claim)
    measures = {
        column.id: table.measure_of(column)
        for column in table.columns_at(scale)
        if both <= {row.name for row in table.rows_at(scale, column)}
    }
    if claim.fall is not None or claim.columns:
        named = claim.fall[1:] if claim.fall else claim.columns
        return tuple(name for name in named if name in measures)
    return tuple(name for name, measure in measures.items() if measure == table.measure)


def _rows(claim: TableClaim) -> set[str]:
    return {claim.better, claim.than, *([claim.towards] if claim.towards else [])}


def _verdict(table: Table, claim: TableClaim, column: Column, values: Values, chance: float) -> ClaimVerdict:
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
        at_chance=measure.percent
        and all(spread(values.get((row, column.id), ())).mean <= chance + AT_CHANCE for row in _rows(claim)),
    )


def _each(claim: TableClaim, column: str, values: Values) -> list[float]:
    """The claim's difference or ratio for each seed."""

    def pairs(where: str, row: str = claim.better) -> list[tuple[float, float]]:
        better, than = (values.get((each, where), ()) for each in (row, claim.than))
        return list(zip(better, than, strict=False))

    differences = [more - less for more, less in pairs(column)]
    if claim.towards:
        whole = [more - less for more, less in pairs(column, claim.towards)]
        return _ratios(claim.factor, list(zip(differences, whole, strict=False)))
    if claim.factor:
        return _ratios(claim.factor, pairs(column))
    if claim.fall is None:
        return differences
    before = [more - less for more, less in pairs(claim.fall[0])]
    return [after - first for first, after in zip(before, differences, strict=False)]


def _ratios(factor: float, pairs: Sequence[tuple[float, float]]) -> list[float]:
    """The ratio of each seed, with the mean of `less` over all seeds as the divisor.

    A seed's own `less` may be next to nothing, and its own ratio then says nothing. The ratio is at least
    `factor` if `more >= factor * less`, and the mean is the ratio of the means; nan if the divisor is not
    above 0.
    """
    mean = spread([less for more, less in pairs if not isnan(more)]).mean
    return [factor + (more - factor * less) / mean if mean > 0 else nan for more, less in pairs]


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
