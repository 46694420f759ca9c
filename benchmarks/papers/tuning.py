"""Compares learning rates of a table's rows on samples of the training part, which no test sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isnan
from statistics import mean

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.systems import task_as_system
from device_runtime.aggregator.tasks.task import Task
from device_runtime.strategies.kinds.registry import KINDS

from .table import Column, Layer, Scale, SystemRow, Table, over

VALIDATION_SHARE = 0.2
ROUNDS = 0.25
"""The share of a row's rounds that are run to compare its learning rates."""


def rows_by_rate(table: Table, scale: Scale, rates: Sequence[float]) -> Table:
    """The table with one row for each row and learning rate, in its first column, without claims.

    Training for the first round alone keeps its rate, as it is the same for all rows.
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
        settings={kind: {"lr": rate} for kind in _trained(row.system)},
    )
    return msgspec.structs.replace(
        row,
        id=_name(row, rate),
        label=f"{row.title}, {rate:g}",
        paper={},
        only=(),
        columns={column.id: over((row.columns.get(column.id, Layer()), cell, tried))},
    )


def _trained(system: str) -> Iterator[str]:
    """The kinds of update whose learning rate is varied: not those of the first round alone."""
    task = Task(bundle="any", rounds=3)
    try:
        kinds = task_as_system(system, task).kinds
    except TaskError:  # it is a policy
        kinds = ()
    first = {kind.name for kind in kinds if kind.until_round == 1}
    return (kind for kind, kind_class in KINDS.items() if hasattr(kind_class, "lr") and kind not in first)


def _name(row: SystemRow, rate: float) -> str:
    return f"{row.name}@{rate:g}"


def best_rates(values: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, float]:
    """The learning rate with the highest mean over seeds, by row of the original table.

    values: those of `rows_by_rate`, by row and column; nan: missing. Rows without any value are left out.
    """
    best: dict[str, tuple[float, float]] = {}
    for (name, _), each in values.items():
        row, _, rate = name.rpartition("@")
        accuracies = [value for value in each if not isnan(value)]
        if accuracies:
            best[row] = max(best.get(row, (-inf, 0.0)), (mean(accuracies), float(rate)))
    return {row: rate for row, (_, rate) in best.items()}
