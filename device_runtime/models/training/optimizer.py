"""SGD and Adam on one flat vector, in place, as in torch up to rounding; clipping of gradients.

A step allocates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Protocol, runtime_checkable

import numpy as np

from device_runtime.models.bundles.tensors import Flat, Tensors, Vector
from device_runtime.models.engines.base import NO_EXTRAS, Gradients, Inputs, Labels, block_buffer, blocks
from device_runtime.models.errors import EngineError

log = logging.getLogger(__name__)


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

    def start(self, params: Vector) -> SgdSteps:
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

    def start(self, params: Vector) -> AdamSteps:
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


def norm(vector: Vector) -> float:
    """Euclidean norm: block by block in float32, the sum of blocks in float64; inf above about 1e19."""
    with np.errstate(over="ignore"):
        return sqrt(sum(float(part @ part) for (part,) in blocks(vector)))


def clip(grads: Vector, max_norm: float) -> float:
    """Scales `grads` in place to a norm of at most `max_norm`, as torch.nn.utils.clip_grad_norm_ does.

    Returns the norm before. The factor is max_norm / (norm + 1e-6), at most 1.
    """
    before = norm(grads)
    factor = max_norm / (before + 1e-6)
    if not factor >= 1:  # a NaN norm makes every gradient NaN, as in torch
        grads *= np.float32(factor)
    return before


@dataclass(frozen=True)
class Privacy:
    """DP-SGD (Abadi et al. 2016, algorithm 1): each sample's gradient clipped to `max_norm`, then noise.

    The noise on the *sum* has standard deviation noise * max_norm for each value; `noise` is the noise
    multiplier, sigma, of a privacy accountant. `rng` must be secret, seeded by the operating system and
    never by a round: whoever can repeat its draws can subtract the noise. Raises ValueError for a
    `max_norm` that is not positive and a `noise` below 0.
    """

    max_norm: float
    noise: float
    rng: np.random.Generator

    def __post_init__(self) -> None:
        if not self.max_norm > 0:
            raise ValueError(f"max_norm is {self.max_norm}, expected more than 0")
        if not self.noise >= 0:
            raise ValueError(f"noise is {self.noise}, expected 0 or more")

    def sampling(self) -> np.random.Generator:
        """A generator for the samples of steps, seeded by `rng`, from which the noise is drawn afterwards."""
        return np.random.Generator(np.random.PCG64(int.from_bytes(self.rng.bytes(16), "little")))

    def noise_of_sum(self, out: Vector) -> Vector:
        """Draws the noise of a sum of gradients into `out`, and returns it."""
        self.rng.standard_normal(dtype=np.float32, out=out)
        out *= np.float32(self.noise * self.max_norm)
        return out


@runtime_checkable
class ClipsSamples(Protocol):
    """A trainer that clips the gradient of each of many samples in one call."""

    def clipped_sum(self, x: Inputs, y: Labels, max_norm: float, extras: Tensors = NO_EXTRAS) -> None:
        """Leaves in `grads` the sum of the samples' gradients, each scaled to a norm of at most `max_norm`.

        A sample whose gradient has no finite norm adds nothing. Raises EngineError.
        """


class PrivateGradients:
    """A trainer whose gradients are (1 / lot) * (sum_i clip(g_i) + noise); see `engines.base.Gradients`.

    If the trainer cannot clip samples itself, it is run sample by sample. That is exact on any engine and for
    any network without batch statistics, and needs the memory of a batch of one and one more vector of the
    model's size.
    """

    def __init__(
        self, trainer: Gradients, privacy: Privacy, lot: int, rows: Collection[str] = frozenset()
    ) -> None:
        """lot: L of algorithm 1, the expected batch size. rows: the extras with one row for each sample.

        Raises EngineError for a trainer with batch statistics, which mix samples before any clipping.
        """
        if trainer.statistics.specs:
            raise EngineError(
                f"gradients of single samples need a network without batch statistics, this one has "
                f"{len(trainer.statistics.specs)}, such as {trainer.statistics.specs[0].name}; "
                f"export it with frozen BatchNorm"
            )
        self.params, self.statistics = trainer.params, trainer.statistics
        self.grads = Flat(trainer.params.specs)
        self._trainer, self._privacy, self._lot, self._rows = trainer, privacy, lot, rows
        self._scratch = block_buffer(self.grads.vector)
        self._at_once = trainer if isinstance(trainer, ClipsSamples) else None

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        """Leaves the private gradient in `grads`, which without samples is noise alone.

        Returns nan, because the loss is not protected by the noise.
        """
        if self._at_once is None or not self._sum_at_once(self._at_once, x, y, extras):
            self._sum_one_by_one(x, y, extras)
        self._add_noise()
        return nan

    def _sum_at_once(self, trainer: ClipsSamples, x: Inputs, y: Labels, extras: Tensors) -> bool:
        """Sums the clipped gradients in one call; False, and not tried again, if the trainer cannot."""
        if not len(x):
            return False
        try:
            trainer.clipped_sum(x, y, self._privacy.max_norm, extras)
        except EngineError as error:
            log.info("private steps go sample by sample: %s", error)
            self._at_once = None
            return False
        np.copyto(self.grads.vector, self._trainer.grads.vector)
        return True

    def _sum_one_by_one(self, x: Inputs, y: Labels, extras: Tensors) -> None:
        self.grads.vector.fill(0)
        for i in range(len(x)):
            sample = slice(i, i + 1)
            sample_extras = {
                name: value[sample] if name in self._rows else value for name, value in extras.items()
            }
            self._trainer.loss_and_grads(x[sample], y[sample], sample_extras)
            self._add_clipped(self._trainer.grads.vector)

    def _add_clipped(self, sample: Vector) -> None:
        """Adds a sample's clipped gradient; a gradient without a finite norm is ignored: it has no bound."""
        length = norm(sample)
        if not isfinite(length):
            return
        factor = np.float32(1 / max(1.0, length / self._privacy.max_norm))
        for total, g in blocks(self.grads.vector, sample):
            np.add(total, np.multiply(g, factor, out=self._scratch[: g.size]), out=total)

    def _add_noise(self) -> None:
        for (total,) in blocks(self.grads.vector):
            if self._privacy.noise:
                np.add(total, self._privacy.noise_of_sum(self._scratch[: total.size]), out=total)
        self.grads.vector /= np.float32(self._lot)
