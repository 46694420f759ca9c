"""Class statistics as Python writes them, and of which classes they are.

Features are multiples of 1/256 below 64: sums of their products are exact in any order.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.device_half import Run
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics import class_statistics, held_out, kind_statistics

LABELS = 5
EDGES = (
    *(0.0, -0.0, 1.0, -1.0, 1 / 3, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-52, 1 - 2.0**-12),
    *(2.0**-14, 2.0**-14 - 2.0**-26, 2.0**-24, 2.0**-25, 2.0**-25 + 2.0**-70, 3 * 2.0**-25, 1e-300, -1e-9),
    *(65504.0, 65519.99, -65519.99, 1 + 2.0**-11 - 2.0**-40),
)


def vectors() -> dict[str, Any]:
    draw = np.random.default_rng(11)
    numbers = np.concatenate([EDGES, draw.uniform(-1, 1, 200), draw.uniform(-1, 1, 40) * 1e-5])
    y = draw.integers(0, LABELS - 1, 60)
    features = draw.integers(-(2**14), 2**14, (60, 6)) / 256
    features[y == 1] = 0
    ties = np.array([[254.0, 1, 3, -5, 127, -253], [-254.0, -1, -3, 5, 0, 2]]) / 256
    cases = [
        (features, y, 1), (features, y, 2), (np.abs(features[:7]), y[:7], 2), (features[:3], y[:3], 9),
        (ties, np.array([0, 4]), 1), (1e-3 * features[:0], y[:0], 1),
    ]  # fmt: skip
    return {
        "halves": {
            "numbers": numbers.astype("<f8").tobytes(),
            "bits": numbers.astype("<f2").tobytes(),
        },
        "encoded": [
            _encoded(f.astype(np.float32), labels, smallest, numbers, moments)
            for f, labels, smallest in cases
            for numbers in ("float16", "int8")
            for moments in (True, False)
        ],
        "held_out": [
            {
                "samples": samples,
                "share": share,
                "device": device,
                "rows": np.flatnonzero(held_out.mask(samples, share, device)).tolist(),
            }
            for samples in (0, 1, 2, 10, 41, 300)
            for share in (0.1, 1 / 3, 0.29, 0.5)
            for device in ("pi-07", "phone.Ä")
        ],
        "chosen": [
            _chosen(present, most, rare, number)
            for present, rare in (([0, 3, 4, 8], []), ([0, 3, 4, 8], [9, 4, 0]), ([1, 2], [2]), ([], [1]))
            for most in (0, 1, 2, 3, 4)
            for number in (1, 2, 3, 4, 5, 8, 12, 1000)
        ],
    }


def _chosen(present: list[int], most: int, rare: list[int], number: int) -> dict[str, Any]:
    run = Run(0, "", clock=lambda: 0.0, upload_at=1.0, round=number, rare=tuple(rare))
    chosen = kind_statistics.chosen_classes(present, most, run)
    return {"present": present, "most": most, "rare": rare, "round": number, "chosen": chosen}


def _encoded(
    features: NDArray[np.float32], y: NDArray[np.int64], smallest: int, numbers: str, moments: bool
) -> dict[str, Any]:
    statistics = class_statistics.measure_statistics(features, y, LABELS, smallest)
    sent = class_statistics.encode(statistics, ClassStatistics(numbers=numbers, moments=moments))
    return {
        "features": features.astype("<f4").tobytes(),
        "width": features.shape[1],
        "y": y.tolist(),
        "labels": LABELS,
        "smallest": smallest,
        "numbers": numbers,
        "moments": moments,
        "sent": tensors.encode(sent),
    }
