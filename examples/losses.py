"""Writes the tables of docs/losses.md into this folder: prices of houses, vibrations of pumps."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(0)


def houses(name: str) -> None:
    """300 houses of four features, with a price in thousands and an area in square metres."""
    x = RNG.normal(size=(300, 4))
    price = 250 + 60 * x[:, 0] + 20 * x[:, 1] * x[:, 2] + 5 * RNG.normal(size=300)
    area = 80 + 15 * x[:, 3] + RNG.normal(size=300)
    rows = np.column_stack([x, price, area])
    np.savetxt(name, rows, "%.3f", ",", header="age,floor,rooms,width,price,area", comments="")


def vibration(count: int, noise: float = 0.0) -> np.ndarray:
    """16 readings of a pump that runs well, or of one that rattles."""
    phase = RNG.uniform(0, 2 * np.pi, (count, 1))
    return np.sin(phase + np.arange(16) / 3) + (0.05 + noise) * RNG.normal(size=(count, 16))


for name in ("kitchen.csv", "attic.csv", "test.csv"):
    houses(name)
for name in ("pump-1.csv", "pump-2.csv"):
    np.savetxt(name, vibration(300), "%.3f", ",")
labelled = np.column_stack(
    [np.concatenate([vibration(100), vibration(30, 0.5)]), np.repeat([0, 1], [100, 30])]
)
header = ",".join([*(f"s{number}" for number in range(16)), "label"])
np.savetxt("known.csv", labelled, ["%.3f"] * 16 + ["%d"], ",", header=header, comments="")
np.savetxt("today.csv", np.concatenate([vibration(2), vibration(1, 0.5)]), "%.3f", ",")
