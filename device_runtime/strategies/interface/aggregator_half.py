"""Inputs and outputs of the aggregator's half of a kind of update, and the mean of tensors that it keeps.

The mean is weighted, and each tensor's is over the devices that trained it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.stacked import Copies, StackedCopy
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.bundles.weights import leading_index
from device_runtime.models.engines.base import BLOCK, DeviceModel, blocks

from .device_half import NO_TENSORS, LocalData


@dataclass(frozen=True)
class PartialWeights:
    """The weight of each element of a tensor that some updates have only a part of, float64.

    Weights of whole tensors are not included. `base` has the values of elements that no update has; it is not
    copied.
    """

    base: NDArray[Any]
    weights: NDArray[np.float64]


class WeighedCopies(NamedTuple):
    """Tensors of these names of k copies, and the weight of each copy, (k,)."""

    copies: Copies
    names: tuple[str, ...]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class TensorMean:
    """Weighted sums in float64, and the weight of each tensor. Each `add` returns the new state.

    `parts` has the tensors that some updates have only a part of. `waiting` has copies that are added up
    together, once others come or the sums are needed.
    """

    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    parts: dict[str, PartialWeights] = field(default_factory=dict)
    waiting: list[WeighedCopies] = field(default_factory=list)

    def add(self, tensors: Tensors, weight: float) -> TensorMean:
        """The mean with one more update; the sums are changed in place. Raises ValueError for weight <= 0."""
        _check(weight)
        if isinstance(tensors, StackedCopy):
            self._wait(tensors, weight)
            tensors = tensors.beside
        for name, value in tensors.items():
            if name in self.sums:
                _add_scaled(self.sums[name], value, weight)
            else:
                self.sums[name] = np.multiply(value, weight, out=np.empty(value.shape), dtype=np.float64)
            self.weights[name] = self.weights.get(name, 0.0) + weight
        return self

    def _wait(self, copy: StackedCopy, weight: float) -> None:
        """Lets a copy wait for others of its stack, of which the same tensors count."""
        if not self.waiting or self.waiting[0][:2] != (copy.copies, copy.names):
            self._settle()
            self.waiting.append(WeighedCopies(copy.copies, copy.names, np.zeros(len(copy.copies.finite))))
        self.waiting[0].weights[copy.index] += weight
        for name in copy.names:
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def _settle(self) -> None:
        """Adds up the copies that wait, on the processor where they are."""
        while self.waiting:
            copies, names, weights = self.waiting.pop()
            for name, total in copies.sums(names, weights).items():
                if name not in self.sums:
                    self.sums[name] = total
                elif self.sums[name].shape == total.shape:
                    self.sums[name] += total
                else:
                    raise ValueError(
                        f"{name} is {total.shape}, the ones before it were {self.sums[name].shape}"
                    )

    def add_leading(self, tensors: Tensors, weight: float, base: Tensors) -> TensorMean:
        """As `add`, for tensors that are the leading part, or the whole, of those of `base`.

        Each element is averaged over the updates that have it, and is that of `base` if none has. Raises
        ValueError for weight <= 0 or a tensor that is no part of the base's.
        """
        _check(weight)
        for name, value in tensors.items():
            if value.shape == base[name].shape:
                self.add({name: value}, weight)
                continue
            where = leading_index(value.shape)
            if value.ndim != base[name].ndim or base[name][where].shape != value.shape:
                raise ValueError(f"{name} is {value.shape}, which is no part of {base[name].shape}")
            total, parts = self._partial(name, base[name])
            total[where] += np.multiply(value, weight, dtype=np.float64)
            parts.weights[where] += weight
        return self

    def _partial(self, name: str, base: NDArray[Any]) -> tuple[NDArray[np.float64], PartialWeights]:
        """The sums and element weights of a tensor, created on first use."""
        if name not in self.sums:
            self.sums[name], self.weights[name] = np.zeros(base.shape), 0.0
        if name not in self.parts:
            self.parts[name] = PartialWeights(base, np.zeros(base.shape))
        return self.sums[name], self.parts[name]

    def join(self, other: TensorMean) -> TensorMean:
        """The mean over the updates of both; neither is changed."""
        self._settle()
        other._settle()
        joined = TensorMean({name: total.copy() for name, total in self.sums.items()}, dict(self.weights))
        for name, total in other.sums.items():
            if name in joined.sums:
                joined.sums[name] += total
                joined.weights[name] += other.weights[name]
            else:
                joined.sums[name] = total.copy()
                joined.weights[name] = other.weights[name]
        for name, parts in (*self.parts.items(), *other.parts.items()):
            _, both = joined._partial(name, parts.base)
            both.weights[...] += parts.weights
        return joined

    def mean(self) -> dict[str, NDArray[Any]]:
        """The means, float32."""
        self._settle()
        return {
            name: np.divide(
                total, self.weights[name], out=np.empty(total.shape, np.float32), casting="same_kind"
            )
            if name not in self.parts
            else self._mean_by_element(name)
            for name, total in self.sums.items()
        }

    def _mean_by_element(self, name: str) -> NDArray[np.float32]:
        parts = self.parts[name]
        weights = parts.weights + self.weights[name]
        mean = np.array(parts.base, np.float32)
        return np.divide(self.sums[name], weights, out=mean, where=weights > 0, casting="same_kind")

    @property
    def most(self) -> float:
        """The largest weight behind any element; 0 if nothing was added."""
        return max(map(self.behind, self.weights), default=0.0)

    def behind(self, name: str) -> float:
        """The largest weight behind any element of one tensor."""
        parts = self.parts.get(name)
        return self.weights[name] + (float(parts.weights.max(initial=0.0)) if parts else 0.0)


def _check(weight: float) -> None:
    if not weight > 0:
        raise ValueError(f"a weight must be positive, not {weight}")


def _add_scaled(total: NDArray[np.float64], value: NDArray[Any], weight: float) -> None:
    """total += weight * value, each product and sum rounded in float64; `total` is contiguous."""
    if value.shape != total.shape:
        raise ValueError(f"a tensor is {value.shape}, the ones before it were {total.shape}")
    if value.size <= BLOCK:
        total += np.multiply(value, weight, dtype=np.float64)
        return
    scratch = np.empty(min(value.size, BLOCK))
    for sums, values in blocks(total.reshape(-1), value.reshape(-1)):
        product = scratch[: values.size]
        product[...] = values
        product *= weight
        np.add(sums, product, out=sums)


NO_FAMILY: Mapping[str, Tensors] = MappingProxyType({})


class ServerTools(Protocol):
    """What a kind may use on the aggregator to train there: the task's models, and its generic set."""

    @property
    def generic(self) -> LocalData | None:
        """Prepared samples that belong to no device (thesis 002, 5.3 and 5.5); None if there are none."""

    def model(self, member: str = "") -> DeviceModel:
        """The main model, or a member of the family, on an engine. Raises ModelError.

        It is opened once and shared: load weights before each use.
        """

    def manifest(self, member: str = "") -> Manifest:
        """The manifest of that model. Raises KeyError for a member that the task does not have."""


@dataclass(frozen=True)
class RoundModel:
    """The model that was distributed in a round, and the round's number and seed.

    family: the weights of the smaller models that were distributed with it, by name.
    memory: what this kind kept on the aggregator after an earlier round.
    tools: None where the aggregator has no engine.
    """

    manifest: Manifest
    weights: Tensors
    round: int
    seed: int
    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    memory: Tensors = field(default_factory=lambda: NO_TENSORS)
    tools: ServerTools | None = None


@dataclass(frozen=True)
class KindResult:
    """The result of one kind's contributions in a round; `merge` joins the results of all kinds.

    mean: averaged with the other kinds' by tensor and weight; the server optimiser steps towards the result.
    steps: zeroth-order steps, taken after that.
    served: replaces tensors of the *distributed* model to give the served one.
    served_mean: as `served`, averaged over all kinds that have one.
    num_examples: samples behind the result.
    assigned: tensors that are put into the base as they are.
    refine: called with the base that all of the above made; gives tensors to replace in it.
    right: how many samples that belong to no device a model classifies correctly, to judge `refine` by.
    family: the next bases of smaller models.
    teach: as `family`, made from the next base once it is final.
    memory: kept on the aggregator for the kind's next round; None: what was kept stays.
    aside: sent to the kind's devices with the next base; None: what was sent stays.
    """

    mean: TensorMean | None = None
    steps: tuple[Step, ...] = ()
    served: Tensors | None = None
    served_mean: TensorMean | None = None
    num_examples: float = 0.0
    assigned: Tensors | None = None
    refine: Callable[[Tensors], Tensors] | None = None
    right: Callable[[Tensors], int] | None = None
    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    teach: Callable[[Tensors], Mapping[str, Tensors]] | None = None
    memory: Tensors | None = None
    aside: Tensors | None = None


@dataclass(frozen=True)
class CarriedState:
    """The state that a round hands to the next in addition to the base model.

    family: the base of each smaller model.
    memory: what each kind keeps on the aggregator, by name; the server optimiser and other parts of merging
    have other names.
    aside: tensors sent to devices with the base.
    """

    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    memory: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    aside: Tensors = field(default_factory=lambda: NO_TENSORS)

    def all(self) -> Iterator[Tensors]:
        """Every set of tensors in it."""
        yield from (*self.family.values(), *self.memory.values(), self.aside)
