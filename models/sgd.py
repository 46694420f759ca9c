"""Stochastic gradient descent on one flat vector, in place."""

from dataclasses import dataclass

import numpy as np

from .tensors import Vector


@dataclass(frozen=True)
class Sgd:
    """Hyperparameters, in torch's convention, without dampening.

    v = momentum * v + g + weight_decay * w + proximal * (w - anchor);  w -= lr * v
    `proximal` is the mu of FedProx (Li et al. 2020, eq. 2); the anchor is where the round started.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0


class SgdState:
    """Momentum and anchor of one run of `sgd`; allocates nothing after it is made."""

    def __init__(self, sgd: Sgd, params: Vector) -> None:
        """params: shape (size,); where training starts, copied as the anchor if `sgd.proximal`."""
        self.sgd = sgd
        self._velocity = np.zeros_like(params) if sgd.momentum else None
        self._anchor = params.copy() if sgd.proximal else None
        self._scratch = np.empty_like(params)

    def step(self, params: Vector, grads: Vector) -> None:
        """One step: `params` is changed in place, `grads` is left as it is; both of shape (size,)."""
        sgd, update = self.sgd, self._scratch
        np.copyto(update, grads)
        if sgd.weight_decay:
            update += np.float32(sgd.weight_decay) * params
        if self._anchor is not None:
            update += np.float32(sgd.proximal) * (params - self._anchor)
        if self._velocity is not None:
            self._velocity *= np.float32(sgd.momentum)
            self._velocity += update
            np.copyto(update, self._velocity)
        update *= np.float32(sgd.lr)
        params -= update
