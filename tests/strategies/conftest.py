"""Partitions of the digits, and a device's run on a clock that stands still."""

from collections.abc import Callable

import numpy as np
import pytest

from strategies.kind import LocalData, Run


@pytest.fixture
def run() -> Callable[..., Run]:
    def make(device: str = "pi-1", seed: int = 77) -> Run:
        return Run(seed, device, clock=lambda: 0.0, deadline=1.0)

    return make


def part(data: LocalData, indices: object) -> LocalData:
    return LocalData(data.x[indices], data.y[indices])


@pytest.fixture
def partitions(digits: LocalData) -> dict[str, list[LocalData]]:
    """One device; three of very different sizes; by class; a device with a single sample."""
    data, n = digits, len(digits)
    order = np.random.default_rng(5).permutation(n)
    return {
        "one device": [data],
        "unequal": [part(data, order[:17]), part(data, order[17:100]), part(data, order[100:])],
        "by class": [part(data, np.isin(data.y, pair)) for pair in ((0, 1), (2, 3, 4), (5, 6, 7, 8, 9))],
        "single sample": [part(data, order[:1]), part(data, order[1:])],
    }
