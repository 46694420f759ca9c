"""Compares learning rates of a table's rows on samples of the training part, which no test sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan
from statistics import mean

import msgspec

from device_runtime.strategies.registry import KINDS

from .table import Column, Layer, Scale, SystemRow, Table, over

VALIDATION_SHARE = 0.2
ROUNDS = 0.25
"""The share of a row's rounds that are run to compare its learning rates."""


def rows_by_rate(table: Table, scale: Scale, rates: Sequence[float]) -> Table:
    """The table with one row for each row and learning rate, in its first column, without claims.

    Its runs have a quarter of the rounds and are evaluated on a fifth of the training samples.
    """
    column = table.columns_at(scale)[0]
    cells = column.cells.get(scale, {})
    rows = tuple(
        _at_rate(row, rate, column, cells.get(row.name, Layer()))
        for row in table.rows_at(scale, column)
        for rate in rates
    )
    return msgspec.structs.replace(
        table,
        title=f"learning rates of: {table.title}",
        columns=(msgspec.structs.replace(column, rows={}, cells={}, until=""),),
        rows=rows,
        scales={scale: msgspec.structs.replace(table.scaled(scale), columns=(), rows=(), seeds=1)},
        claims=(),
        orderings=(),
    )


def _at_rate(row: SystemRow, rate: float, column: Column, cell: Layer) -> SystemRow:
    tried = Layer(
        times=ROUNDS,
        data={"validation_share": VALIDATION_SHARE},
        settings={kind: {"lr": rate} for kind, made in KINDS.items() if hasattr(made, "lr")},
    )
    return msgspec.structs.replace(
        row,
        id=_name(row, rate),
        label=f"{row.title}, {rate:g}",
        paper={},
        only=(),
        columns={column.id: over((row.columns.get(column.id, Layer()), cell, tried))},
    )


def _name(row: SystemRow, rate: float) -> str:
    return f"{row.name}@{rate:g}"


def best_rates(
    table: Table, scale: Scale, rates: Sequence[float], values: Mapping[tuple[str, str], Sequence[float]]
) -> dict[str, float]:
    """The learning rate with the highest mean over seeds, by row of the `table`.

    values: those of `rows_by_rate`, by row and column; nan: missing.
    """
    column = table.columns_at(scale)[0]

    def score(row: SystemRow, rate: float) -> float:
        found = [value for value in values[_name(row, rate), column.id] if not isnan(value)]
        return mean(found) if found else -inf

    return {row.name: max(rates, key=lambda rate: score(row, rate)) for row in table.rows_at(scale, column)}
