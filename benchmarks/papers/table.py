"""A table of a paper, as its TOML file describes it: rows, columns, scales, claims, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from device_runtime.simulation.errors import ScenarioError
from device_runtime.strategies.interface.kind import Settings

from .measures import MEASURES


class Deadline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round's deadline: `full` times a full update of a device of `group` with a mean number of samples.

    The update includes download and upload; the deadline is rounded to two digits. With `full` 0 it is a day,
    which is no limit in practice.
    """

    full: float = 0.0
    group: str = "fast"


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a table, scale, column or row, which replace those of the layers below; others stay.

    `fleet` is a name in shared.toml or a fleet preset; `bundle` and the members of `family` are names in
    shared.toml or shipped bundles; NAME*3 in `family` is three models of one size, called NAME-1 to NAME-3.
    `kinds` are those that mixed rounds offer. `settings` by kind of update; `first_epochs` by kind: the local
    epochs of its first round. `data`, `task`, `engine` as in a scenario. `times` multiplies the rounds of
    `task`, for systems with shorter rounds.
    """

    devices: int | None = None
    slow: float | None = None
    eval_every: int | None = None
    fleet: str | None = None
    bundle: str | None = None
    family: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    deadline: Deadline | None = None
    times: float | None = None
    engine: str | None = None
    data: dict[str, Any] = {}
    task: dict[str, Any] = {}
    settings: dict[str, Settings] = {}
    first_epochs: dict[str, int] = {}


def over(layers: Iterable[Layer]) -> Layer:
    """Merges layers into one: later layers replace settings of earlier ones."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for name in layer.__struct_fields__:
            value = getattr(layer, name)
            if isinstance(value, dict):
                whole[name] = _merged(whole.get(name, {}), value)
            elif value is not None:
                whole[name] = value
    return Layer(**whole)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


Scale = Literal["smoke", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "full")


class TablePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a column or a row: those at every scale, and those at single scales."""

    setting: Layer = Layer()
    at: dict[Scale, Layer] = {}

    def layers(self, scale: Scale) -> tuple[Layer, ...]:
        return (self.setting, self.at.get(scale, Layer()))


class Column(TablePart, frozen=True, kw_only=True):
    """A column: a data set, its division, and a measure (default: that of the table).

    `modifier` is added to the system of every row, as in +dp. `until`: the row at whose end `acc_at_time` and
    `acc_at_energy` compare all rows; "": at the earliest end. `rows`: the only rows at a scale; `cells`: the
    settings of single rows in this column, by scale. `group`: measure only the classes that this group of the
    fleet alone holds.
    """

    id: str
    title: str
    data: str
    measure: str = ""
    modifier: str = ""
    until: str = ""
    group: str = ""
    rows: dict[Scale, tuple[str, ...]] = {}
    cells: dict[Scale, dict[str, Layer]] = {}


class SystemRow(TablePart, frozen=True, kw_only=True):
    """A row: a system. `paper` has the paper's cells by column, as printed.

    `only`: the columns that have the row. `columns`: its settings in single columns. `measure`: its own
    measure in the columns that have the table's.
    """

    system: str
    id: str = ""
    label: str = ""
    paper: dict[str, str] = {}
    only: tuple[str, ...] = ()
    columns: dict[str, Layer] = {}
    measure: str = ""

    @property
    def name(self) -> str:
        return self.id or self.system

    @property
    def title(self) -> str:
        return self.label or self.name


class Scaled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table at one scale; `columns`, `rows`: () is all.

    `differences` are those from the paper's setting, in sentences.
    """

    setting: Layer = Layer()
    differences: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: int = 3


class TableClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A claim: row `better` exceeds row `than` by more than `margin` (percentages: in points).

    With `factor` it is at least that many times as much; with `within` the two differ by no more than that;
    with `fall` (two columns) `better` loses less than `than` from the first to the second; with `towards`
    (a row) the lead of `better` over `than` is at least `factor` times the lead of that row. `columns`: ()
    means all columns with the table's own measure and both rows.
    """

    text: str
    better: str
    than: str
    columns: tuple[str, ...] = ()
    margin: float = 0.0
    factor: float = 0.0
    within: float | None = None
    fall: tuple[str, str] | None = None
    towards: str = ""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table; `id` is its name in the command. Raises ScenarioError for parts that do not fit each other.

    `orderings` are lists of rows whose neighbours are compared: the claim is the order that the paper prints,
    in every column with the table's own measure.
    """

    id: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[SystemRow, ...]
    scales: dict[Scale, Scaled]
    paper: str = ""  # number of the paper; "" for a table of ours
    measure: str = "best_acc"
    setting: Layer = Layer()
    differences: tuple[str, ...] = ()  # at every scale
    claims: tuple[TableClaim, ...] = ()
    orderings: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        columns, rows = [column.id for column in self.columns], [row.name for row in self.rows]
        for what, names in (("column", columns), ("row", rows)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ScenarioError(f"{self.id} has {what} {twice[0]} twice")
        own = [*(column.measure for column in self.columns), *(row.measure for row in self.rows)]
        for name in (self.measure, *own):
            if name and name not in MEASURES:
                raise ScenarioError(f"{self.id}: no measure {name!r}; there are {', '.join(MEASURES)}")
        for column in (column for column in self.columns if column.group):
            for name in {self.measure_of(column, row) for row in self.rows}:
                if not MEASURES[name].by_class:
                    raise ScenarioError(f"{self.id}: {name} of column {column.id} is not of single classes")
        self._check_names("column", columns, self._columns_named())
        self._check_names("row", rows, self._rows_named())

    def _columns_named(self) -> Iterable[str]:
        for row in self.rows:
            yield from (*row.paper, *row.only, *row.columns)
        for claim in self.claims:
            yield from (*claim.columns, *(claim.fall or ()))
        for scaled in self.scales.values():
            yield from scaled.columns

    def _rows_named(self) -> Iterable[str]:
        for column in self.columns:
            yield from (column.until,) if column.until else ()
            for rows in (*column.rows.values(), *column.cells.values()):
                yield from rows
        for claim in self.claims:
            yield from (claim.better, claim.than, *([claim.towards] if claim.towards else []))
        for ordering in self.orderings:
            yield from ordering
        for scaled in self.scales.values():
            yield from scaled.rows

    def _check_names(self, what: str, names: list[str], named: Iterable[str]) -> None:
        if unknown := [name for name in named if name not in names]:
            raise ScenarioError(f"{self.id} has no {what} {unknown[0]!r}; it has {', '.join(names)}")

    def scaled(self, scale: Scale) -> Scaled:
        """The table at this scale. Raises ScenarioError if it does not have it."""
        if scale not in self.scales:
            raise ScenarioError(f"{self.id} has no scale {scale}; it has {', '.join(self.scales)}")
        return self.scales[scale]

    def only(self, scale: Scale, columns: Sequence[str], rows: Sequence[str]) -> Table:
        """The table with these columns and rows at this scale; () leaves them. Raises ScenarioError."""
        before = self.scaled(scale)
        part = msgspec.structs.replace(
            before, columns=tuple(columns) or before.columns, rows=tuple(rows) or before.rows
        )
        return msgspec.structs.replace(self, scales={**self.scales, scale: part})

    def columns_at(self, scale: Scale) -> tuple[Column, ...]:
        columns = self.scaled(scale).columns
        return tuple(column for column in self.columns if not columns or column.id in columns)

    def rows_at(self, scale: Scale, column: Column) -> tuple[SystemRow, ...]:
        """The rows that are run in this column."""
        every = tuple(row.name for row in self.rows)
        names = {*(self.scaled(scale).rows or every)} & {*column.rows.get(scale, every)}
        rows = (row for row in self.rows if row.name in names)
        return tuple(row for row in rows if not row.only or column.id in row.only)

    def measure_of(self, column: Column, row: SystemRow | None = None) -> str:
        """The measure of the column, or of a row in it."""
        return column.measure or (row.measure if row else "") or self.measure
