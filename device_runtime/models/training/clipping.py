"""Gradient clipping: of a whole step, or of each sample, with noise, for DP-SGD."""

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
        deviation = np.float32(self._privacy.noise * self._privacy.max_norm)
        for (total,) in blocks(self.grads.vector):
            if deviation:
                noise = self._scratch[: total.size]
                self._privacy.rng.standard_normal(dtype=np.float32, out=noise)
                noise *= deviation
                np.add(total, noise, out=total)
        self.grads.vector /= np.float32(self._lot)
