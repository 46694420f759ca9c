"""Stage 2 of SLoRA begins with the best low-rank approximation of what stage 1 changed."""

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError


def factors(change: NDArray[np.float32], rank: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """a and b in the shapes of a LoRA layer's tensors, with b @ a nearest to `change` (Eckart, Young 1936).

    change: (out, in), or a convolution's (out, in, height, width), taken as out rows; a: (rank, in, ...),
    b: (out, rank, ...). Both have the roots of the singular values; places beyond the rank of `change` are 0.
    Where alpha is not the rank, give change * rank / alpha. Raises TensorError for a change of other
    dimensions or that is not finite, and for a rank below 1. Babakniya et al. 2023, section 4.
    """
    if change.ndim not in (2, 4) or change.size == 0:
        raise TensorError(f"a change of shape {change.shape} has no factors, expected (out, in[, h, w])")
    if rank < 1:
        raise TensorError(f"rank is {rank}, expected at least 1")
    if not np.isfinite(change).all():
        raise TensorError("the change holds values that are not finite")
    out, *inner = change.shape
    left, values, right = np.linalg.svd(change.reshape(out, -1).astype(np.float64), full_matrices=False)
    kept = min(rank, len(values))
    roots = np.sqrt(values[:kept])
    a = np.zeros((rank, right.shape[1]), np.float32)
    b = np.zeros((out, rank), np.float32)
    a[:kept] = roots[:, None] * right[:kept]
    b[:, :kept] = left[:, :kept] * roots
    return a.reshape(rank, *inner), b.reshape(out, rank, *(1 for _ in inner[1:]))


def product(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """b @ a in the shape of the layer's weight: what `factors` approximates. Shapes as it gives them."""
    out, rank = b.shape[:2]
    both = b.reshape(out, rank).astype(np.float64) @ a.reshape(rank, -1)
    return both.reshape(out, *a.shape[1:])
