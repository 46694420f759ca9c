"""Loads the data set of a scenario's [data] table and divides it among the fleet's devices.

`Clients` has the samples of all devices: one data set, and each device's part of it as indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.errors import TensorError
from device_runtime.profiles.fleets.fleet import Fleet
from device_runtime.simulation import partition
from device_runtime.simulation.errors import DataSetError, ScenarioError
from device_runtime.simulation.partition.methods import NOBODY, Ints, Parts, cap
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.statistics.held_out import mask as held_out_mask

from .dataset import DataSet, check, held_out, limited, numbered_as, of_classes, validated
from .recordings import cuts_windows
from .spec import OF_BUNDLES, SHARES_OFF, SOURCES, DataSpec

DIVISION, GROUPS = 13, 15  # purposes of draws from a run's seed

MANY = 1_000_000
"""The most devices of which each is drawn samples of its own, where several may have the same."""
REPEATED = 100_000
"""The parts that larger fleets have: device i has the samples of device i - REPEATED."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RepeatedParts(Sequence[Ints]):
    """The parts of a large fleet: one after another, and then from the first again."""

    parts: Parts
    devices: int

    def __len__(self) -> int:
        return self.devices

    @overload
    def __getitem__(self, device: int) -> Ints: ...
    @overload
    def __getitem__(self, device: slice) -> Parts: ...
    def __getitem__(self, device: int | slice) -> Ints | Parts:
        if isinstance(device, slice):
            return [self[i] for i in range(*device.indices(self.devices))]
        return self.parts[range(self.devices)[device] % len(self.parts)]


def divide_fleet(data: DataSet, spec: DataSpec, fleet: Fleet) -> Sequence[Ints]:
    """Divides the data among the devices of a fleet, by the fleet's seed.

    With `spec.groups` each group of the fleet gets its own samples, which are divided among its devices.
    Raises DataSetError, also for groups that do not fit this data and fleet.
    """
    if not spec.groups:
        return divide(data, spec, len(fleet), fleet.seed)
    holders = _holders(data, spec, fleet)
    parts: Parts = [np.empty(0, np.int64)] * len(fleet)
    for group, name in enumerate(fleet.spec.groups):
        devices, samples = (np.flatnonzero(of == group) for of in (fleet.draws.group, holders))
        if len(devices) and not len(samples):
            raise DataSetError(f"group {name} of the fleet would hold nothing: no samples are left for it")
        whose = None if data.groups is None else data.groups[samples]
        subset = replace(data, train_x=samples, train_y=data.train_y[samples], groups=whose)
        rng = np.random.default_rng([fleet.seed, DIVISION, group + 1])
        try:
            dealt = _divided(subset, spec, len(devices), rng) if len(devices) else []
        except DataSetError as error:
            raise DataSetError(f"group {name} of the fleet: {error}") from None
        for device, part in zip(devices.tolist(), dealt, strict=True):
            parts[device] = samples[part]
    return parts


def divide(data: DataSet, spec: DataSpec, devices: int, seed: int) -> Sequence[Ints]:
    """Divides the training samples: sorted indices for each device, none empty, the same for a seed.

    Where samples are reused by more than MANY devices, the parts of REPEATED devices repeat.

    Raises DataSetError when the samples, classes or groups do not suffice.
    """
    if devices < 1:
        raise DataSetError(f"{devices} devices, expected 1 or more")
    if spec.groups:
        raise DataSetError(f"data.groups has {', '.join(spec.groups)}: expected a fleet with these groups")
    rng = np.random.default_rng([seed, DIVISION])
    if spec.reuse and devices > MANY:
        return RepeatedParts(_divided(data, spec, REPEATED, rng), devices)
    return _divided(data, spec, devices, rng)


def _divided(data: DataSet, spec: DataSpec, devices: int, rng: np.random.Generator) -> Parts:
    y, samples = data.keys, len(data.train_y)
    if samples < devices * spec.min_samples and not spec.reuse:
        least = "one sample" if spec.min_samples == 1 else f"{spec.min_samples} samples"
        more = ", or reuse = true with samples_per_client" if spec.partition in ("iid", "dirichlet") else ""
        raise DataSetError(
            f"{devices} devices, but {samples} training samples: each needs {least} at least; "
            f"fewer devices{more}"
        )
    if spec.partition == "iid":
        return partition.iid(samples, devices, rng, _sizes(spec))
    if spec.partition == "dirichlet":
        return partition.dirichlet(y, devices, spec.alpha, rng, _sizes(spec))
    if spec.partition == "classes":
        return partition.classes(y, devices, spec.classes_per_client, rng, spec.samples_per_client)
    return cap(_whole(data, spec, devices, rng), spec.samples_per_client, rng)


def _whole(data: DataSet, spec: DataSpec, devices: int, rng: np.random.Generator) -> Parts:
    """Divides by a partition whose sizes follow from the data."""
    if spec.partition in ("dirichlet-by-class", "dirichlet-fedml"):
        capped = spec.partition == "dirichlet-fedml"
        return partition.dirichlet_by_class(data.keys, devices, spec.alpha, rng, spec.min_samples, capped)
    if spec.partition == "shards":
        return partition.shards(data.keys, devices, spec.classes_per_client, rng)
    if data.groups is None:
        raise DataSetError(
            f"samples of source {spec.source} have no groups (writers, speakers): partition natural "
            "needs them"
        )
    return partition.natural(data.groups, devices, rng, spec.groups_per_client, spec.min_samples)


def _sizes(spec: DataSpec) -> partition.Sizes:
    return partition.Sizes(
        spec.samples_per_client, spec.quantity_sigma, spec.quantity_alpha, spec.min_samples, spec.reuse
    )


def _holders(data: DataSet, spec: DataSpec, fleet: Fleet) -> Ints:
    """The number of the fleet's group that holds each training sample, (n,). Raises DataSetError."""
    rng = np.random.default_rng([fleet.seed, GROUPS])
    holders = np.empty(len(data.train_y), np.int64)
    unit = np.arange(len(holders))
    if spec.partition == "natural" and data.groups is not None:
        unit = np.where(
            data.groups == NOBODY, unit, -1 - data.groups
        )  # below 0: samples of one speaker, which stay together
    for pool, weights in _claims(data, spec, fleet):
        for samples in (pool[unit[pool] < 0], pool[unit[pool] >= 0]):
            units, which = np.unique(unit[samples], return_inverse=True)
            numbers = np.repeat(np.arange(len(weights)), partition.apportioned(weights, len(units)))
            holders[samples] = rng.permutation(numbers)[which]
    return holders


def _claims(data: DataSet, spec: DataSpec, fleet: Fleet) -> Iterator[tuple[Ints, Floats]]:
    """Yields samples (k,) with the weights (groups,) by which the groups share them. Raises DataSetError."""
    names = tuple(fleet.spec.groups)
    devices = np.bincount(fleet.draws.group, minlength=len(names))
    for name in spec.groups:
        if name not in names or not devices[names.index(name)]:
            raise DataSetError(
                f"data.groups.{name}: none of the fleet's {len(fleet)} devices is of this group"
            )
    keys = _keys(data, spec)
    named = [spec.groups[name].named if name in spec.groups else () for name in names]
    claims: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    for key in np.unique(keys).tolist():
        shared_by_all = spec.by_speaker and key == NOBODY
        claims[tuple(shared_by_all or key in numbers for numbers in named)].append(key)
    for claimed, ids in claims.items():
        weights = np.where(claimed, devices, 0.0)
        if not any(claimed):
            weights = _rest(spec, dict(zip(names, devices.tolist(), strict=True)), f"{_unit(spec)} {ids[0]}")
        yield np.flatnonzero(np.isin(keys, ids)), weights


def _keys(data: DataSet, spec: DataSpec) -> Ints:
    """The class, or the speaker where groups name speakers, of each training sample, (n,).

    Raises DataSetError for groups that name one that the data does not have.
    """
    keys, choices = data.keys, np.arange(len(data.key_names))
    if data.in_tenths and (named := [name for name, group in spec.groups.items() if group.classes]):
        raise DataSetError(
            f"data.groups.{named[0]} names classes, and the targets are numbers ({data.labels[0]}), of which "
            "tenths would be classes: give a share, or speakers"
        )
    if spec.by_speaker:
        if data.groups is None:
            raise DataSetError(
                f"samples of source {spec.source} have no speakers: data.groups cannot name speakers"
            )
        keys, choices = data.groups, np.unique(data.groups[data.groups != NOBODY])
    for name, group in spec.groups.items():
        for wrong in {*group.named} - {*choices.tolist()}:
            numbers = f"{len(choices)}, from {choices[0]} to {choices[-1]}"
            raise DataSetError(f"data.groups.{name} has {_unit(spec)} {wrong}, the data has {numbers}")
    return keys


def _rest(spec: DataSpec, devices: dict[str, int], first: str) -> Floats:
    """The groups' weights (groups,) for samples that no group names, such as `first`. Raises DataSetError."""
    named_shares = {name: group.share or 0.0 for name, group in spec.groups.items()}
    shares: Floats = np.array([named_shares.get(name, 0.0) for name in devices])
    others = np.array([0 if name in named_shares else count for name, count in devices.items()])
    left = max(0.0, 1 - float(shares.sum()))
    if left > SHARES_OFF and not others.any():
        expected = f"shares of {1 - left:g} in all, expected 1" if shares.any() else "no group names it"
        raise DataSetError(f"data.groups: no device would hold {first}: {expected}")
    return shares + left / max(1, int(others.sum())) * others


def _unit(spec: DataSpec) -> str:
    return "speaker" if spec.by_speaker else "class"


def load(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads the samples that `spec` names, of its classes.

    `seed` draws the split where the source has none, the samples that max_train and max_test keep, those of
    validation, and the generic samples. The bundle numbers the classes, makes the token ids of sources of
    text, and cuts recordings. Raises DataSetError, which says what is wrong, where, and what was expected.
    """
    source = "recordings" if spec.source == "table" and cuts_windows(bundle) else spec.source
    module, function = SOURCES[source].split(".")
    read = getattr(import_module(f".{module}", __package__), function)
    needed = (bundle,) if spec.source in OF_BUNDLES else ()
    data: DataSet = read(spec, seed, *needed)
    where = spec.path or spec.source
    chosen = of_classes(check(data, where), spec, where)
    if bundle is not None:
        chosen = numbered_as(chosen, bundle.manifest, spec)
    return held_out(validated(limited(chosen, spec, seed), spec, seed), spec, seed)


class LastDataSet:
    """Keeps the data set that was loaded last, for runs of the same data and seed that follow each other."""

    def __init__(self) -> None:
        self._data: tuple[object, DataSet] | None = None

    def load(self, spec: DataSpec, seed: int, bundle: Bundle) -> DataSet:
        """As the function `load`; never holds two data sets."""
        key = spec, seed, bundle.path
        if self._data is None or self._data[0] != key:
            self._data = None
            self._data = key, load(spec, seed, bundle)
        return self._data[1]


@dataclass(frozen=True)
class Clients:
    """A data set divided among devices.

    `x` raw inputs (n, ...), `y` targets as the graphs take them, labels int64 (n,) or float32 (n, columns);
    device i has order[offsets[i]:offsets[i + 1]], and after the last of these parts they repeat. `x` may be
    memory-mapped: a device's samples are read and prepared when they are needed.
    devices: their number; 0: as many as there are parts.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    order: NDArray[np.int64]
    offsets: NDArray[np.int64]
    devices: int = 0

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any], parts: Sequence[NDArray[np.int64]]) -> Clients:
        """Made from each device's indices into x and y, (n_k,)."""
        devices = len(parts)
        if isinstance(parts, RepeatedParts):
            parts = parts.parts
        ends = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        order = np.concatenate(parts) if len(parts) else np.empty(0, np.int64)
        return cls(x, y, order.astype(np.int64, copy=False), ends, devices)

    def of_class(self, label: int) -> Clients:
        """The same devices with only their samples of this class."""
        return self._among(self.y[self.order] == label)

    def split(self, share: float) -> tuple[Clients, Clients]:
        """The same devices with what they train on, and with this share of their samples, to test on.

        As a device holds samples out (`held_out.mask`): every 1 / share-th, never all.
        """
        masks = [held_out_mask(size, share, f"{part}") for part, size in enumerate(self.sizes().tolist())]
        tests: NDArray[np.bool_] = np.concatenate([np.empty(0, np.bool_), *masks])
        return self._among(~tests), self._among(tests)

    def _among(self, chosen: NDArray[np.bool_]) -> Clients:
        """The same devices with only the chosen ones of their samples, bool (len(order),)."""
        ends = np.concatenate([[0], np.cumsum(chosen)])[self.offsets]
        return replace(self, order=self.order[chosen], offsets=ends)

    def __len__(self) -> int:
        return self.devices or self.parts

    @property
    def parts(self) -> int:
        """The number of parts: fewer than the devices where they repeat."""
        return len(self.offsets) - 1

    def sizes(self) -> NDArray[np.int64]:
        """The number of samples of each part, (k,)."""
        return np.diff(self.offsets)

    def indices(self, device: int) -> NDArray[np.int64]:
        """The indices of this device's samples, (n_k,)."""
        device %= self.parts
        return np.asarray(self.order)[self.offsets[device] : self.offsets[device + 1]]

    def local(self, device: int, spec: InputSpec) -> LocalData:
        """This device's samples, prepared for the bundle's input. Raises TensorError."""
        indices = self.indices(device)
        return LocalData(spec.prepare(np.asarray(self.x)[indices]), self.y[indices])

    def class_counts(self, device: int, labels: int) -> tuple[int, ...]:
        """The number of this device's samples of each class; of columns of targets, of all, (n_k,)."""
        indices = self.indices(device)
        if self.y.ndim > 1:
            return (len(indices),)
        return tuple(np.bincount(self.y[indices], minlength=labels).tolist())

    def save(self, folder: Path) -> None:
        """Writes .npy files, which other processes map into memory."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("x", "y", "order", "offsets"):
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)

    @classmethod
    def open(cls, folder: Path) -> Clients:
        """Opens what `save` wrote; all but `y` are memory-mapped."""
        x, order, offsets = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in ("x", "order", "offsets")
        )
        y = np.load(folder / "y.npy", allow_pickle=False)
        return cls(x, y, order, np.asarray(offsets))


def _numbers_of(labels: Sequence[str]) -> NDArray[np.float64] | None:
    """The labels as numbers; None if any is none."""
    try:
        return np.array([float(label) for label in labels])
    except ValueError:
        return None


def prepared_targets(data: DataSet, manifest: Manifest, y: NDArray[Any]) -> NDArray[Any]:
    """Targets `y` of the data as the bundle's graphs take them. Raises ScenarioError where they do not fit.

    Classes that are numbers may be values. Of a bundle that reconstructs its input, classes of data that has
    others are all taken as normal.
    """
    target, labels = manifest.target, len(manifest.labels)
    if target.has_columns and not data.has_columns and (values := _numbers_of(data.labels)) is not None:
        y, data = values[y][:, None], replace(data, train_y=values[data.train_y][:, None])
    if target.has_columns != data.has_columns:
        has = f"{len(data.labels)} columns of targets" if data.has_columns else f"{len(data.labels)} classes"
        takes = f"{target.loss} of columns" if target.has_columns else target.description
        raise ScenarioError(f"the data has {has}, the loss of bundle {manifest.name} is {takes}")
    if target.has_columns:
        try:
            return target.prepare(y)
        except TensorError as error:
            raise ScenarioError(f"the data does not fit bundle {manifest.name}: {error}") from None
    if target.compared == "input" and len(data.labels) > labels:
        return np.zeros_like(y)
    if (top := int(y.max(initial=0))) >= labels:
        raise ScenarioError(f"the data has label {top}, bundle {manifest.name} has {labels}")
    return y
