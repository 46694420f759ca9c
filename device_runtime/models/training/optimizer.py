"""SGD and Adam on one flat vector, in place, as in torch up to rounding; a step allocates nothing."""

from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np

from device_runtime.models.bundles.tensors import Vector
from device_runtime.models.engines.base import block_buffer, blocks


class OptimizerRun(Protocol):
    """One run of an optimiser; holds its momenta, but not the parameters."""

    def step(self, params: Vector, grads: Vector) -> None:
        """One step: changes `params` in place, leaves `grads` unchanged; both have shape (size,)."""


class Optimizer(Protocol):
    """Hyperparameters of an optimiser, from which any number of runs may start."""

    def start(self, params: Vector) -> OptimizerRun:
        """Starts a run over vectors of the shape of `params`, (size,); does not keep `params`."""


@dataclass(frozen=True)
class Sgd:
    """SGD by torch's convention, without dampening: v = momentum * v + g + weight_decay * w;  w -= lr * v.

    A run holds one vector of the model's size if there is momentum. Raises ValueError for a learning rate or
    weight_decay below 0, and a momentum outside [0, 1).
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(lr=self.lr, weight_decay=self.weight_decay)
        _fractions(momentum=self.momentum)

    def start(self, params: Vector) -> "SgdSteps":
        """See `Optimizer`."""
        return SgdSteps(self, params)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1); `decoupled` weight decay is AdamW's (Loshchilov, Hutter 2019).

    A run holds two vectors of the model's size. Raises ValueError for a learning rate, eps or weight_decay
    below 0, and betas outside [0, 1).
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        _not_negative(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        _fractions(beta1=self.beta1, beta2=self.beta2)

    def start(self, params: Vector) -> "AdamSteps":
        """See `Optimizer`."""
        return AdamSteps(self, params)


class SgdSteps:
    """A run of `Sgd`; see `OptimizerRun`."""

    def __init__(self, sgd: Sgd, params: Vector) -> None:
        self._sgd = sgd
        self._velocity = np.zeros_like(params) if sgd.momentum else None
        self._scratch = block_buffer(params)

    def step(self, params: Vector, grads: Vector) -> None:
        """See `OptimizerRun`."""
        moving = [] if self._velocity is None else [self._velocity]
        for block in blocks(params, grads, *moving):
            self._block(*block)

    def _block(self, w: Vector, g: Vector, velocity: Vector | None = None) -> None:
        sgd, scratch = self._sgd, self._scratch[: w.size]
        slope = g
        if sgd.weight_decay:
            slope = np.multiply(w, np.float32(sgd.weight_decay), out=scratch)
            slope += g
        if velocity is not None:
            velocity *= np.float32(sgd.momentum)
            velocity += slope
            slope = velocity
        w -= np.multiply(slope, np.float32(sgd.lr), out=scratch)


class AdamSteps:
    """A run of `Adam`; see `OptimizerRun`.

    `mean` and `square` are the moments after `count` steps, not corrected for bias.
    """

    def __init__(self, adam: Adam, params: Vector) -> None:
        self._adam = adam
        self.mean, self.square, self.count = np.zeros_like(params), np.zeros_like(params), 0
        self._scratch, self._slope = block_buffer(params), block_buffer(params)

    def step(self, params: Vector, grads: Vector) -> None:
        """See `OptimizerRun`."""
        self.count += 1
        for w, g, mean, square in blocks(params, grads, self.mean, self.square):
            self._average(self._decay(w, g), mean, square)
            self._move(w, mean, square)

    def _decay(self, w: Vector, g: Vector) -> Vector:
        """The block's gradient with weight decay added; if decoupled, decays `w` in place and returns `g`."""
        adam = self._adam
        if not adam.weight_decay:
            return g
        if adam.decoupled:
            w *= np.float32(1 - adam.lr * adam.weight_decay)
            return g
        slope = self._slope[: w.size]
        np.multiply(w, np.float32(adam.weight_decay), out=slope)
        slope += g
        return slope

    def _average(self, slope: Vector, mean: Vector, square: Vector) -> None:
        scratch = self._scratch[: mean.size]
        np.subtract(slope, mean, out=scratch)
        scratch *= np.float32(1 - self._adam.beta1)
        mean += scratch
        square *= np.float32(self._adam.beta2)
        np.multiply(slope, slope, out=scratch)
        scratch *= np.float32(1 - self._adam.beta2)
        square += scratch

    def _move(self, w: Vector, mean: Vector, square: Vector) -> None:
        adam, update = self._adam, self._scratch[: w.size]
        np.sqrt(square, out=update)
        update /= np.float32(sqrt(1 - adam.beta2**self.count))
        update += np.float32(adam.eps)
        np.divide(mean, update, out=update)
        update *= np.float32(adam.lr / (1 - adam.beta1**self.count))
        w -= update


def _not_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"{name} is {value}, expected 0 or more")


def _fractions(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}, expected at least 0 and less than 1")
