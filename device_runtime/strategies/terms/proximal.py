"""Proximal terms: add the gradient of a squared distance from an anchor, for any optimiser."""

from dataclasses import dataclass

import numpy as np

from device_runtime.models.bundles.tensors import Flat, Tensors, Vector
from device_runtime.models.engines.blocks import BLOCK, blocks
from device_runtime.models.errors import TensorError


@dataclass(frozen=True)
class Proximal:
    """weight / 2 * sum over the anchor's tensors of ||w - anchor||^2: gradient weight * (w - anchor).

    FedProx (Li et al. 2020, eq. 2): weight mu, every trained tensor. The anchor is not copied.
    """

    weight: float
    anchor: Tensors

    def start(self, params: Flat) -> "ProximalPull":
        """The term for these parameters. Raises TensorError for an anchor that is not among them."""
        return ProximalPull(self, params)


def fscprox(mu: float, classifier: Tensors) -> Proximal:
    """The term mu * ||theta - theta_fs||^2 on the classifier alone (thesis 002, eq. 4.3).

    It has no factor 1/2, so the weight is 2 mu. classifier: the head's tensors; few-shot trained for FSCProx,
    those of the base model for baseProx.
    """
    return Proximal(2 * mu, classifier)


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
