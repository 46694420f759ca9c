"""The settings of one kind of update in a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from math import inf
from typing import Annotated, Any

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics, Settings
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.settings import Setting


class KindSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """One kind of update that is offered, from round `from_round` to `until_round` (None: to the end).

    weight: a factor on the weight of its updates in the mean, which is in samples.
    max_norm: a bound on the distance of an update from the base, as the Euclidean norm over all its tensors;
    a tensor that the base does not have counts with its norm.
    first_epochs: the local epochs of round `from_round`, for models that train before the other rounds begin
    (thesis 002, sections 5.6 and 6.4.1); 0: as in the others.
    """

    name: Annotated[str, Setting("Kind of update: `device-runtime kinds` lists them.", "full")]
    settings: Annotated[
        Settings, Setting("Settings of the kind: `device-runtime kinds NAME`.", {"epochs": 5, "lr": 0.05})
    ] = {}
    from_round: Annotated[int, Setting("The first round that offers it.", 3, "rounds", at_least=1)] = 1
    until_round: Annotated[
        int | None, Setting("The last round that offers it; none: to the end.", 5, "rounds", at_least=1)
    ] = None
    weight: Annotated[
        float, Setting("Factor on the weight of its updates in the mean.", 0.5, more_than=0)
    ] = 1.0
    max_norm: Annotated[
        float | None,
        Setting(
            "Largest distance of an update from the base; none: no limit.",
            10.0,
            "Euclidean norm",
            more_than=0,
        ),
    ] = None

    first_epochs: Annotated[
        int,
        Setting(
            "Local epochs of its first round; 0: as in the others.",
            20,
            "epochs",
            at_least=0,
            at_most=ranges.MOST,
        ),
    ] = 0

    def __post_init__(self) -> None:
        try:
            kind = registry.make(self.name, self.settings)
            ranges.check(self, f" of {self.name}")
        except ValueError as error:
            raise TaskError(str(error)) from None
        if self.first_epochs and not hasattr(kind, "epochs"):
            raise TaskError(f"first_epochs of {self.name}: this kind does not train in epochs")
        _ = self.of_round(self.from_round)  # whose settings are checked too
        if self.until_round is not None and self.until_round < self.from_round:
            least = f"expected {self.from_round} or more"
            raise TaskError(f"until_round of {self.name} is {self.until_round}, {least}")

    @cached_property
    def strategy(self) -> AnyStrategy:
        return registry.make(self.name, self.settings)

    def weight_of(self, contribution: Update) -> float:
        """The weight of an update of this kind in the mean, in samples.

        Raises OwnCodeError for an own kind that gives no positive number.
        """
        strategy = self.strategy
        with own_code(type(strategy)):
            weight = self.weight * float(strategy.weight(contribution))
            if not 0 < weight < inf:
                raise ValueError(f"weight of {self.name} is {weight:g}, expected a positive number")
            return weight

    def with_statistics(self, statistics: ClassStatistics | None) -> KindSettings:
        """The same kind, with these class statistics in its updates; None: without class statistics."""
        if self.strategy.statistics == statistics:
            return self
        own = {name: value for name, value in self.settings.items() if name != registry.STATISTICS}
        more = {} if statistics is None else {registry.STATISTICS: msgspec.to_builtins(statistics)}
        return msgspec.structs.replace(self, settings={**own, **more})

    def of_round(self, number: int) -> KindSettings:
        """The same kind, in its first round with `first_epochs`, and then without graded forms of them."""
        if not self.first_epochs or number != self.from_round:
            return self
        graded = {"graded": False} if getattr(self.strategy, "graded", False) else {}
        settings = {**self.settings, "epochs": self.first_epochs, **graded}
        return msgspec.structs.replace(self, settings=settings, first_epochs=0)

    def in_round(self, number: int) -> bool:
        """Whether the kind is offered in round `number`."""
        return self.from_round <= number and (self.until_round is None or number <= self.until_round)


def kinds_named(names: Iterable[str]) -> tuple[KindSettings, ...]:
    """The kinds with these names, in this order of preference. Several get the settings of a mixed round."""
    offered = registry.default_settings(tuple(names))
    return tuple(KindSettings(name=name, settings=settings) for name, settings in offered)


def tables_named(names: Iterable[str], tables: object) -> list[Mapping[str, Any]]:
    """The `[[kinds]]` table of each name; one with the name alone where `tables`, of a file, have none."""
    by_name = {each["name"]: each for each in tables if _is_kind(each)} if isinstance(tables, list) else {}
    return [by_name.get(name, {"name": name}) for name in names]


def with_usual(tables: object) -> object:
    """Adds the usual settings of mixed rounds to the `[[kinds]]` tables of a file, which override them.

    A text in the list is the name of a kind without own settings. A kind that is alone in its rounds gets
    none of the usual ones. Anything else is returned as it is, for the error that its conversion raises.
    """
    if isinstance(tables, list):
        tables = [{"name": each} if isinstance(each, str) else each for each in tables]
    if not isinstance(tables, list) or not all(map(_is_kind, tables)):
        return tables
    return [
        {**each, "settings": registry.in_mixed_round(each["name"], each.get("settings", {}))}
        if any(other is not each and _share_a_round(each, other) for other in tables)
        else each
        for each in tables
    ]


def _share_a_round(kind: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a round offers both kinds."""
    (first, last), (others_first, others_last) = _rounds(kind), _rounds(other)
    return first <= others_last and others_first <= last


def _rounds(table: Mapping[str, Any]) -> tuple[float, float]:
    """The first and the last round that offers the kind. A value that is no number counts as left out."""
    first, last = table.get("from_round"), table.get("until_round")
    return first if isinstance(first, int) else 1, last if isinstance(last, int) else inf


def _is_kind(table: object) -> bool:
    """Whether this is a table with a name, and with a table of settings if it has any."""
    if not isinstance(table, dict):
        return False
    return isinstance(table.get("name"), str) and isinstance(table.get("settings", {}), dict)
