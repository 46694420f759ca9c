"""Makes the scenario of a table's cell: its data, its bundles, and its deadline in seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import floor, log10
from statistics import mean
from typing import Any

import msgspec
import numpy as np

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.kind_settings import KindSettings, kinds_named
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles import DeviceProfile, FleetSpec, ProfileError, shipped
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios.scenario import Scenario, of_policy
from device_runtime.strategies.interface.kind import Settings
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.registry import KINDS
from device_runtime.strategies.training.workload import workload

from . import exporting, pretraining
from .catalogue import stem
from .exporting import BundleSamples
from .places import DataEntry, DataFolder, Form, SharedTables
from .sampling import named, spec_of
from .table import Column, Deadline, Layer, Scale, SystemRow, Table, over

MIXED = ("choose", "mixed")
"""Systems whose rounds offer exactly the kinds that the layers name."""
A_DAY_S = 86_400.0
WITHOUT_CLIPPING = Layer(
    settings={
        kind: {"clip_norm": 0.0} for kind, kind_class in KINDS.items() if hasattr(kind_class, "clip_norm")
    }
)
"""The first layer of papers' tables, because papers do not clip gradients; our default is to clip."""


@dataclass(frozen=True)
class Resources:
    """The available data and shared definitions, and the place to train (`place`: cpu, cuda)."""

    folder: DataFolder
    shared: SharedTables
    place: str = "cpu"


def notes(
    table: Table, scale: Scale, shared: SharedTables, forms: Mapping[str, Form | None]
) -> tuple[str, ...]:
    """Sentences on how data and bundles differ from the paper's; `forms` are those used, by column.

    Raises ScenarioError.
    """
    lines: dict[str, None] = {}
    for column in table.columns_at(scale):
        entry, whole = shared.entry(column.data, scale), shared.data[column.data]
        if entry is not whole:
            lines[f"{entry.title[0].upper()}{entry.title[1:]} stand for {whole.title}."] = None
        form = forms[column.id]
        if form is not None and form.difference:
            lines[form.difference] = None
    for column in table.columns_at(scale):
        entry = shared.entry(column.data, scale)
        used = (layer(table, scale, entry, (column, row)).bundle for row in table.rows_at(scale, column))
        lines |= dict.fromkeys(
            sentence
            for bundle in used
            if bundle in shared.bundles
            for sentence in shared.bundles[bundle].differences
        )
    return tuple(lines)


def layer(table: Table, scale: Scale, entry: DataEntry, cell: tuple[Column, SystemRow]) -> Layer:
    """The merged layer of a cell: data set, table, scale, column, row, cell, the later over the earlier."""
    column, row = cell
    below_all = WITHOUT_CLIPPING if table.paper else Layer()
    below = (below_all, entry.at.get(scale, Layer()), table.setting, table.scaled(scale).setting)
    own = row.columns.get(column.id, Layer()), column.cells.get(scale, {}).get(row.name, Layer())
    return over((*below, *column.layers(scale), *row.layers(scale), *own))


def scenario(table: Table, scale: Scale, cell: tuple[Column, SystemRow], where: Resources) -> Scenario:
    """The scenario of a row in a column, before its system changes the task.

    Trains and exports bundles and enlarges images unless that was done before. Raises SimulationError,
    ModelError.
    """
    entry = where.shared.entry(cell[0].data, scale)
    whole = layer(table, scale, entry, cell)
    samples = BundleSamples(entry, where.folder.form(entry, scale))

    def bundle_of(name: str) -> str:
        bundle = where.shared.bundles.get(name)
        learnt = None
        if bundle is not None and bundle.pretrain is not None:
            learnt = pretraining.weights(bundle.pretrain, where.shared, where.folder)
        return exporting.bundle(name, where.shared, samples, where.folder, learnt)

    def seconds(deadline: Deadline, bundle: str, spec: DataSpec) -> float:
        update = FullUpdate(bundle, spec, _devices(whole), whole.settings.get("full", {}))
        return deadline_s(deadline, _fleet(whole, where.shared), whole.slow or 1.0, update)

    real = CellParts(lambda: spec_of(samples, whole.data, where.folder), bundle_of, seconds)
    return _scenario(table, cell, whole, real, where)


def setting(
    table: Table, scale: Scale, cell: tuple[Column, SystemRow], shared: SharedTables, form: Form | None
) -> CellSetting:
    """The setting of a row in a column as its tables say it, which needs no data and no bundles.

    Raises ScenarioError.
    """
    entry = shared.entry(cell[0].data, scale)
    whole = layer(table, scale, entry, cell)
    samples = BundleSamples(entry, form)

    def identity(name: str) -> str:
        return exporting.identity(name, shared, samples)

    def stand_in(deadline: Deadline, bundle: str, spec: DataSpec) -> float:
        if not deadline.full:
            return A_DAY_S
        text = repr((deadline.full, deadline.group, sorted(whole.settings.get("full", {}).items())))
        return float(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16))

    parts = CellParts(lambda: named(samples, whole.data), identity, stand_in)
    scenario_ = _scenario(table, cell, whole, parts, Resources(DataFolder(None), shared))
    family = scenario_.task.family
    return CellSetting(
        msgspec.structs.replace(scenario_, task=msgspec.structs.replace(scenario_.task, family=())), family
    )


@dataclass(frozen=True)
class CellSetting:
    """A run's setting, the same on every machine: names in place of paths, and no place to train.

    A number stands for the seconds of the deadline. `family` is that of the task, whose own is empty, because
    systems look into the bundles of a family.
    """

    scenario: Scenario
    family: tuple[str, ...]

    def key(self, policy: str) -> str:
        """A hash that is equal for equal runs, of any table, on every machine. Raises ScenarioError."""
        unnamed = msgspec.structs.replace(of_policy(self.scenario, policy), name="any")
        return hashlib.sha256(unnamed.json() + repr(self.family).encode()).hexdigest()


@dataclass(frozen=True)
class CellParts:
    """How the parts of a scenario are made: its data, bundles by name, and the seconds of its deadline."""

    spec: Callable[[], DataSpec]
    bundle: Callable[[str], str]
    seconds: Callable[[Deadline, str, DataSpec], float]


def _scenario(
    table: Table, cell: tuple[Column, SystemRow], whole: Layer, parts: CellParts, where: Resources
) -> Scenario:
    column, row = cell
    try:
        spec = parts.spec()
        task = _task(whole, spec, parts)
        kinds = _kinds(task, whole, row.system in MIXED)
        task = msgspec.structs.replace(task, kinds=kinds) if whole.kinds is None else task.naming(kinds)
        return Scenario(
            name=stem(table.id),
            fleet=_fleet(whole, where.shared),
            devices=_devices(whole),
            slow=whole.slow or 1.0,
            eval_every=1 if whole.eval_every is None else whole.eval_every,
            engine=_engine(whole, where),
            place=where.place,
            data=spec,
            task=task,
        )
    except (TaskError, ProfileError, ValueError) as error:
        raise ScenarioError(f"{table.id}, {row.name} in {column.id}: {error}") from None


def _task(whole: Layer, spec: DataSpec, parts: CellParts) -> Task:
    if whole.bundle is None:
        raise ValueError("no layer says which bundle")
    task: dict[str, Any] = {"bundle": parts.bundle(whole.bundle), **whole.task}
    if whole.family is not None:
        task["family"] = [parts.bundle(member) for name in whole.family for member in _copies(name)]
    if whole.deadline is not None:
        task["round_deadline_s"] = parts.seconds(whole.deadline, task["bundle"], spec)
    checked = msgspec.convert(task, Task)
    times = 1 if whole.times is None else whole.times
    return msgspec.structs.replace(checked, rounds=round(times * checked.rounds))


def _copies(name: str) -> list[str]:
    """NAME*3 as NAME#1, NAME#2 and NAME#3, the names of three copies."""
    original, _, number = name.partition("*")
    return [f"{original}#{copy + 1}" for copy in range(int(number))] if number else [name]


def _engine(whole: Layer, where: Resources) -> str:
    """The engine of the layers, on a processor; else torch for a bundle that was exported here, or auto."""
    if where.place != "cpu":
        return "torch"
    return whole.engine or ("torch" if whole.bundle in where.shared.bundles else "auto")


def _kinds(task: Task, whole: Layer, mixed: bool) -> tuple[KindSettings, ...]:
    """The task's kinds with the layers' settings; unless `mixed`, also kinds that only settings name."""
    kinds = task.kinds if whole.kinds is None else kinds_named(whole.kinds)
    names = {kind.name for kind in kinds}
    named = dict.fromkeys((*whole.settings, *whole.first_epochs))
    others = () if mixed else tuple(name for name in named if name not in names)
    return tuple(
        msgspec.structs.replace(
            kind,
            settings={**kind.settings, **whole.settings.get(kind.name, {})},
            first_epochs=whole.first_epochs.get(kind.name, kind.first_epochs),
        )
        for kind in (*kinds, *(KindSettings(name=name) for name in others))
    )


def _devices(whole: Layer) -> int:
    if whole.devices is None:
        raise ValueError("no layer says how many devices")
    return whole.devices


def _fleet(whole: Layer, shared: SharedTables) -> FleetSpec:
    name = whole.fleet or "uniform"
    if name in shared.fleets:
        return fleets.read({"name": name, **shared.fleets[name]})
    return fleets.load(name)


@dataclass(frozen=True)
class FullUpdate:
    """The parts of a setting that decide what a full update takes."""

    bundle: str
    data: DataSpec
    devices: int
    settings: Settings


def deadline_s(deadline: Deadline, fleet: FleetSpec, slow: float, update: FullUpdate) -> float:
    """The seconds of a round's deadline, to two digits: see `Deadline`; by the median device of its group.

    Raises ScenarioError, DataSetError, ModelError.
    """
    if not deadline.full:
        return A_DAY_S
    group = fleet.groups.get(deadline.group)
    if group is None:
        groups = ", ".join(fleet.groups)
        raise ScenarioError(f"fleet {fleet.name} has no group {deadline.group}; it has {groups}")
    shipped_as = shipped(group.profile)
    rate = shipped_as.speed.flops_per_s * group.speed.factor / slow
    profile = replace(shipped_as, speed=replace(shipped_as.speed, flops_per_s=rate))
    return _rounded(deadline.full * _takes_s(update, profile))


def _takes_s(update: FullUpdate, profile: DeviceProfile) -> float:
    """Seconds of a full update of a device with a mean number of samples, whatever the groups hold."""
    data = data_sets.load(update.data, 0)
    divided = msgspec.structs.replace(update.data, groups={})
    parts = data_sets.divide(data, divided, update.devices, 0)
    samples = round(mean(len(part) for part in parts))
    manifest = Bundle.open(bundles.find_bundle(update.bundle)).manifest
    counts = np.bincount(np.arange(samples) % len(data.labels), minlength=len(manifest.labels))
    load = workload(manifest, tuple(counts.tolist()))
    return registry.make("full", update.settings).cost(load, profile).seconds


def _rounded(value: float) -> float:
    return round(value, 1 - floor(log10(value)))
