"""Random directions of every generator, the golden ones too; hashes are of little-endian float32."""

import hashlib
from typing import Any

from device_runtime.strategies.directions import directions

MOST = 2**64 - 1
PLACES = ((2024, 0, 0, 12), (2024, 1, 1 << 40, 70), (0, 0, 0, 23), (77, 1, 0, 333), (MOST, MOST, 256, 9))
LONG = ((9, 2, 0, 2 * directions.BLOCK + 5), (MOST, 1, (1 << 45) + 256, 1000))


def vectors() -> dict[str, Any]:
    return {
        "elements": [
            {**_place(generator, *place), "elements": directions.direction(*place, generator).tolist()}
            for generator in directions.GENERATORS
            for place in PLACES
        ],
        "hashes": [
            {
                **_place(generator, *place),
                "sha256": hashlib.sha256(directions.direction(*place, generator).astype("<f4")).digest(),
            }
            for generator in directions.GENERATORS
            for place in LONG
        ],
    }


def _place(generator: str, seed: int, index: int, start: int, size: int) -> dict[str, Any]:
    return {"generator": generator, "seed": str(seed), "index": str(index), "start": start, "size": size}
