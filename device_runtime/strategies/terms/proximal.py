"""Proximal terms, FedProx and FSCProx: the gradient of a squared distance from an anchor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from device_runtime.models.bundles.tensors import Flat, Tensors, Vector
from device_runtime.models.engines.base import BLOCK, DeviceModel, blocks
from device_runtime.models.errors import TensorError
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.device_half import LocalData, Run, few_shot_head
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.training.local_training import TrainingPlan
from device_runtime.strategies.training.workload import head_specs

from .local_term import LocalTerm


@dataclass(frozen=True)
class FedProx(LocalTerm):
    """mu / 2 * ||w - w_g||^2 over all trained parameters (Li et al. 2020, equation 2)."""

    name: ClassVar[str] = "fedprox"
    about: ClassVar[str] = "holds training near the base (FedProx: Li et al. 2020)"
    mu: Annotated[float, Setting("Weight of the term.", 0.1, more_than=0)] = 0.01

    def __post_init__(self) -> None:
        ranges.check(self)

    def apply(self, plan: TrainingPlan, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        weights = model.weights
        anchor = {name: weights[name] for name in model.manifest.names(plan.tunable)}
        return replace(plan, gradients=(*plan.gradients, Proximal(self.mu, anchor)))


@dataclass(frozen=True)
class FscProx(LocalTerm):
    """mu * ||theta - anchor||^2 on the classifier alone (thesis 002, equation 4.3).

    It has no factor 1/2, so the weight of `Proximal` is 2 mu. The anchor is the mean of the last few-shot
    trained classifiers (FSCProx; no term while there are none) or the classifier of the base (baseProx).
    """

    name: ClassVar[str] = "fscprox"
    about: ClassVar[str] = "holds the classifier near few-shot trained ones (FSCProx: Shi 2025)"
    mu: Annotated[float, Setting("Weight of the term.", 0.1, more_than=0)] = 0.01
    anchor: Annotated[
        Literal["few-shot", "base"], Setting("The classifier that training is held near.", example="base")
    ] = "few-shot"

    def __post_init__(self) -> None:
        ranges.check(self)

    def apply(self, plan: TrainingPlan, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        weights = model.weights if self.anchor == "base" else few_shot_head(run.aside)
        anchor = {
            spec.name: weights[spec.name] for spec in head_specs(model.manifest) if spec.name in weights
        }
        return replace(plan, gradients=(*plan.gradients, Proximal(2 * self.mu, anchor)))


@dataclass(frozen=True)
class Proximal:
    """weight / 2 * sum over the anchor's tensors of ||w - anchor||^2: gradient weight * (w - anchor).

    The anchor is not copied.
    """

    weight: float
    anchor: Tensors

    def start(self, params: Flat) -> ProximalPull:
        """The term for these parameters. Raises TensorError for an anchor that is not among them."""
        return ProximalPull(self, params)


class ProximalPull:
    """A proximal term during one training; allocates one block, and nothing in a step."""

    def __init__(self, term: Proximal, params: Flat) -> None:
        self._weight = np.float32(term.weight)
        self._anchors = {name: _flat_anchor(name, value, params) for name, value in term.anchor.items()}
        longest = max((anchor.size for anchor in self._anchors.values()), default=0)
        self._scratch = np.empty(min(longest, BLOCK), np.float32)

    def add(self, params: Flat, grads: Flat) -> None:
        """Adds the term's gradient at `params` to `grads`."""
        for name, anchor in self._anchors.items():
            w, g = params.views[name].reshape(-1), grads.views[name].reshape(-1)
            for block in blocks(w, g, anchor):
                self._block(*block)

    def _block(self, w: Vector, g: Vector, anchor: Vector) -> None:
        pull = np.subtract(w, anchor, out=self._scratch[: w.size])
        pull *= self._weight
        g += pull


def _flat_anchor(name: str, anchor: Vector, params: Flat) -> Vector:
    if name not in params.views:
        raise TensorError(f"proximal anchor {name} is not among the {len(params.views)} trained tensors")
    shape = params.views[name].shape
    if anchor.shape != shape or anchor.dtype != np.float32:
        raise TensorError(
            f"proximal anchor {name} is {anchor.dtype} {anchor.shape}, expected float32 {shape}"
        )
    return np.ascontiguousarray(anchor).reshape(-1)
