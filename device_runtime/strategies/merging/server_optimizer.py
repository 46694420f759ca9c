"""Server optimizers: FedAvg, FedAvgM, FedExP, FedAdagrad, FedAdam and FedYogi step from the base to the mean.

Reddi et al. 2021 (Adaptive Federated Optimization), algorithm 2; Hsu et al. 2019, section 4.3 (FedAvgM);
Jhunjhunwala et al. 2023 (FedExP), algorithm 1.

`MergeRule` is the interface of a user's own rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.names import RUNNING_STATISTICS
from device_runtime.models.bundles.stacked import outline, squares
from device_runtime.models.bundles.tensors import Tensors, Vector
from device_runtime.models.bundles.weights import leading_index
from device_runtime.models.engines.base import BLOCK, blocks
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.plugins import Plugin, own_code
from device_runtime.strategies.settings import Setting


class MergeRule(Plugin, ABC):
    """A frozen dataclass whose fields are its settings, given in the `settings` of a task's `server`."""

    registry: ClassVar[dict[str, Any]] = {}
    about: ClassVar[str] = "own merge rule"

    @abstractmethod
    def step(self, base: Tensors, mean: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        """The tensors of `mean` after a step from `base` towards it, and the memory for the next round.

        Arguments are not changed. `memory` is what the last step returned, {} in the first round.
        """


Name = Literal["fedavg", "fedavgm", "fedexp", "fedadagrad", "fedadam", "fedyogi"]

DEFAULT_LR: Mapping[Name, float] = {
    "fedavg": 1.0,
    "fedavgm": 1.0,
    "fedexp": 1.0,
    "fedadagrad": 0.03,
    "fedadam": 0.01,
    "fedyogi": 0.01,
}
"""Default learning rates, for networks with random initial weights.

Pre-trained networks need smaller rates: thesis 000 (A.2) tries 0.001 to 0.000001.
"""


@dataclass(frozen=True)
class ServerOptimizer:
    """A step from the base along delta: the mean of the updates minus the base.

    fedavg: w += lr delta; with lr 1, the mean itself.
    fedavgm: m = momentum m + delta, w += lr m.
    fedexp: w += lr f delta, with f from `extrapolated`.
    The others: m = beta1 m + (1 - beta1) delta, w += lr m / (sqrt(v) + tau), where v starts at tau^2, without
    bias correction; fedadam: v = beta2 v + (1 - beta2) delta^2, fedyogi: v -= (1 - beta2) delta^2
    sign(v - delta^2), fedadagrad: v += delta^2, without betas.
    lr: None: the default in DEFAULT_LR. Defaults: Reddi et al., appendix D.1; momentum: Hsu et al., section
    4.3. Raises ValueError for lr or tau of 0 or less, betas and momentum outside [0, 1), another name.
    """

    name: Annotated[
        str, Setting("Server optimiser, or an own merge rule; fedavg takes the mean itself.", "fedadam")
    ] = "fedavg"
    lr: Annotated[
        float | None,
        Setting(
            "Learning rate of the server optimiser; none: 0.01 (fedadam, fedyogi), 0.03 (fedadagrad), or 1.",
            example=0.001,
            more_than=0,
        ),
    ] = None
    beta1: Annotated[float, Setting("Decay of the first moment.", 0.95, at_least=0, less_than=1)] = 0.9
    beta2: Annotated[float, Setting("Decay of the second moment.", 0.999, at_least=0, less_than=1)] = 0.99
    tau: Annotated[
        float,
        Setting(
            "Added to the root of the second moment; of fedexp, to the square of the mean.",
            1e-4,
            more_than=0,
        ),
    ] = 1e-3
    momentum: Annotated[float, Setting("Momentum of fedavgm.", 0.5, at_least=0, less_than=1)] = 0.9
    settings: Annotated[
        Mapping[str, Any], Setting("Settings of an own merge rule.", {}, beside={"name": "fedavg"})
    ] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.name not in DEFAULT_LR and self.name not in MergeRule.registry:
            names = ", ".join((*get_args(Name), *MergeRule.registry))
            raise ValueError(f"no server optimiser is called {self.name!r}; there are {names}")
        if self.settings and self.name in DEFAULT_LR:
            raise ValueError(f"settings are for an own merge rule, and {self.name} is none")
        ranges.check(self)
        _ = self.own_rule

    @property
    def own_rule(self) -> MergeRule | None:
        """The own merge rule; None for a shipped optimiser. Raises ValueError for wrong settings."""
        if self.name in DEFAULT_LR:
            return None
        rule = MergeRule.registry[self.name]
        names = signature(rule).parameters
        for name in self.settings:
            if name not in names:
                raise ValueError(f"{self.name} has no setting {name!r}; it has {', '.join(names) or 'none'}")
        try:
            instance: MergeRule = rule(**self.settings)
        except TypeError as error:
            raise ValueError(f"settings of {self.name}: {error}") from None
        return instance

    @property
    def rate(self) -> float:
        """The learning rate that applies."""
        return DEFAULT_LR[cast(Name, self.name)] if self.lr is None else self.lr

    @property
    def extrapolates(self) -> bool:
        """Whether its rate depends on the lengths of the updates, as that of FedExP does."""
        return self.name == "fedexp"

    def extrapolated(self, base: Tensors, mean: Tensors, squares: Mapping[str, float]) -> ServerOptimizer:
        """The optimiser for one round of FedExP, with a rate that is f times as long.

            f = max(1, sum_i p_i |delta_i|^2 / (2 (|delta|^2 + tau)))

        squares: the mean over the updates of their squared change, by tensor. The more the updates differ,
        the shorter is their mean, and the further it may go.
        """
        changes = squared_changes(base, {name: mean[name] for name in squares})
        longer = sum(squares.values()) / (2 * (sum(changes.values()) + self.tau))
        return replace(self, lr=self.rate * max(1.0, longer))

    @property
    def moments(self) -> tuple[str, ...]:
        """Which of the moments m and v it keeps for every trained tensor."""
        some = {"fedavg": (), "fedexp": (), "fedavgm": ("m",), "fedadagrad": ("v",)}
        return some.get(self.name, ("m", "v"))

    def step(
        self, base: Tensors, mean: Tensors, memory: Tensors
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """The tensors of `mean` after a step from `base` towards it, and the memory for the next round.

        Memory: m/NAME and v/NAME float32, of the shape of tensor NAME; moments of tensors not in `mean` stay.
        Running statistics, integers and tensors that the base does not have are set to the mean. Arguments
        are not changed. Raises ValueError if shapes differ.
        """
        if (own := self.own_rule) is not None:
            with own_code(type(own)):
                stepped, remembered = own.step(base, mean, memory)
                return dict(stepped), dict(remembered)
        after, next_memory = dict(mean), dict(memory)
        if not self.moments and self.rate == 1:
            return after, next_memory
        for name, value in mean.items():
            if name in base and value.dtype.kind == "f" and not name.endswith(RUNNING_STATISTICS):
                after[name] = _copy(name, base[name], value.shape)
                moments = {which: self._moment(which, name, value, memory) for which in self.moments}
                self._move(after[name], np.asarray(value, np.float32), moments)
                next_memory.update({f"{which}/{name}": moment for which, moment in moments.items()})
        return after, next_memory

    def _moment(self, which: str, name: str, value: NDArray[Any], memory: Tensors) -> Vector:
        """A copy of a kept moment, or its initial value."""
        key = f"{which}/{name}"
        if key in memory:
            return _copy(key, memory[key], value.shape)
        start: Vector = np.full(value.shape, self.tau**2 if which == "v" else 0, np.float32)
        return start

    def _move(self, weights: Vector, mean: Vector, moments: Mapping[str, Vector]) -> None:
        """Step one tensor, a block at a time; `weights` and `moments` are changed in place."""
        scratch = np.empty((2, min(weights.size, BLOCK)), np.float32)
        flat = [vector.reshape(-1) for vector in (weights, mean, *moments.values())]
        for w, target, *parts in blocks(*flat):
            delta, room = scratch[:, : w.size]
            np.subtract(target, w, out=delta)
            change = self._change(delta, dict(zip(moments, parts, strict=True)), room)
            np.add(w, change, out=w)

    def _change(self, delta: Vector, moments: Mapping[str, Vector], room: Vector) -> Vector:
        """The step of a block of weights, written over `delta`; `room` is scratch memory."""
        along = delta
        if "v" in moments:
            self._square(delta, moments["v"], room)
        if "m" in moments:
            decay = np.float32(self.momentum if self.name == "fedavgm" else self.beta1)
            if self.name != "fedavgm":
                delta *= np.float32(1) - decay
            along = moments["m"]
            along *= decay
            along += delta
        change: Vector = np.multiply(along, np.float32(self.rate), out=delta)
        if "v" in moments:
            np.sqrt(moments["v"], out=room)
            room += np.float32(self.tau)
            change /= room
        return change

    def _square(self, delta: Vector, v: Vector, room: Vector) -> None:
        """Update the second moment of a block in place."""
        np.multiply(delta, delta, out=room)
        if self.name == "fedyogi":
            room *= np.sign(room - v) * np.float32(1 - self.beta2)
        elif self.name == "fedadam":
            v *= np.float32(self.beta2)
            room *= np.float32(1 - self.beta2)
        v += room


def squared_changes(base: Tensors, update: Tensors) -> dict[str, float]:
    """By tensor, the squared distance of the update from the base.

    Of float tensors alone, without running statistics; a leading part is compared with that of the base.
    """
    starts = {}
    for name, value in outline(update).items():
        whole = base.get(name)
        if whole is None or value.dtype.kind != "f" or name.endswith(RUNNING_STATISTICS):
            continue
        part = whole[leading_index(value.shape)] if value.ndim == whole.ndim else whole
        if part.shape == value.shape:
            starts[name] = part
    return squares(update, starts)


def _copy(name: str, value: NDArray[Any], shape: tuple[int, ...]) -> Vector:
    """A contiguous float32 copy. Raises ValueError unless `value` has this shape."""
    if value.shape != shape:
        raise ValueError(f"{name} is {value.shape}, its mean is {shape}")
    return np.array(value, np.float32, order="C")
