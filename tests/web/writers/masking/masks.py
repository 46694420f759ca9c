"""Keystreams of mask seeds, added to vectors whose bytes are all 255, so that every sum overflows."""

import hashlib
from typing import Any

from device_runtime.strategies.masking.masks import CHUNK, MaskedVector

SEEDS = (bytes(range(32)), b"\xff" * 32)
SHAPES = ((0, 0), (3, 1), (16, 8), (21, 13), (CHUNK // 4, CHUNK // 8), (CHUNK // 2 + 5, CHUNK // 8 + 7))


def vectors() -> dict[str, Any]:
    return {"chunk": CHUNK, "seeds": SEEDS, "masked": [_masked(*shape) for shape in SHAPES]}


def _masked(values: int, sums: int) -> dict[str, Any]:
    vector = MaskedVector.from_bytes(b"\xff" * (4 * values + 8 * sums), values, sums)
    vector.add_masks(SEEDS)
    content = vector.to_bytes()
    return {
        "values": values,
        "sums": sums,
        "start": content[:64],
        "end": content[-64:],
        "sha256": hashlib.sha256(content).digest(),
    }
