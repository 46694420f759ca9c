"""Which samples are kept out of training, to be evaluated on: by their content alone."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORDS = 1 << 64
SHARE, LEAST = 0.1, 10
"""Where no share is wished: of all samples, once so many of them are held out; fewer tell little of a model,
and are missed in its training.
"""


def is_held_out(x: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """For each of x (n, ..) whether it is one of about `share` that are held out, (n,).

    The same sample always is or never is, whatever comes or goes beside it; equal samples are together.
    """
    if not share:
        return np.zeros(len(x), bool)
    key = seed.to_bytes(8, "little")
    below = int(share * WORDS)
    found = np.empty(len(x), bool)
    for number, one in enumerate(np.ascontiguousarray(x)):
        digest = hashlib.blake2b(one.tobytes(), digest_size=8, key=key).digest()
        found[number] = int.from_bytes(digest, "little") < below
    return found
