"""What a device draws from its own randomness in a round. Whole numbers are text: they go beyond 2**53."""

from typing import Any

import numpy as np

from device_runtime.strategies.interface.device_half import Run

SEEDS = (0, 1, 2**32, 2**63 - 25, 2**100 + 12345, 2**140 + 7)
RUNS = ((0, "pi-07"), (2**64 - 1, "phone-é"), (6_000_000_000_000_000_000, "a/b 🦊"))
ITEMS = (5, 7, 9, 11, 2**31 - 1)
BELOW = (2**53, 2**63, 3 * 2**61 + 5)


def vectors() -> dict[str, Any]:
    return {
        "generators": [
            {"seed": str(seed), **_drawn(np.random.Generator(np.random.PCG64(seed)))} for seed in SEEDS
        ],
        "runs": [
            {"seed": str(seed), "device": device, **_drawn(Run(seed, device, lambda: 0.0, 0.0).rng())}
            for seed, device in RUNS
        ],
    }


def _drawn(rng: np.random.Generator) -> dict[str, Any]:
    """In this order: half words are left over between the draws."""
    return {
        "below": [str(most) for most in BELOW],
        "mixed": rng.permutation(np.array(ITEMS)).tolist(),
        "integers": [str(int(rng.integers(most))) for most in BELOW],
        "order": rng.permutation(23).tolist(),
        "alone": rng.permutation(1).tolist(),
        "shares": rng.random(3).tolist(),
        "last": rng.permutation(300).tolist()[-5:],
    }
