"""Writes a SYNTHETIC data set of activities, as an accelerometer in a trouser pocket would record them.

    python examples/activities.py people
    python examples/activities.py people --persons 30 --seconds 60 --seed 1

No person was recorded: the numbers come from the physical model below, and are the same on every machine for
a seed. Each person has a step rate, a force of steps, a way of swaying and a pocket of their own, so that
persons differ as the clients of a federation do. The files are PERSON/ACTIVITY/NUMBER.csv with the columns
time (seconds) and x, y, z (acceleration in g, 9.81 m/s2), 50 rows a second.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 50  # rows a second
NOISE = 0.02  # g, standard deviation of the sensor's noise

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gait:
    """How an activity moves the hip: steps a second, and forces in g.

    impact: vertical, at the rate of steps, with its harmonics. forward: at the same rate, a quarter later.
    sway: sideways, at half the rate, since it takes a left and a right step. uneven: share by which the rate
    wanders, as on stairs with landings.
    """

    rate: float
    impact: float
    forward: float
    sway: float
    uneven: float


GAITS = {
    "sitting": Gait(0.0, 0.0, 0.0, 0.0, 0.0),
    "stairs": Gait(1.5, 0.28, 0.16, 0.12, 0.10),
    "walking": Gait(1.85, 0.35, 0.20, 0.10, 0.03),
    "running": Gait(2.7, 1.10, 0.45, 0.25, 0.03),
}
HARMONICS = (1.0, 0.45, 0.2)  # of the impact: a heel strike is sharper than a sine


@dataclass(frozen=True)
class Person:
    """What makes a person's recordings alike.

    pace: factor of the rate of steps. force: factor of all forces. phases: of the harmonics, rad. pocket:
    rotation from the hip's axes (forward, left, up) to the sensor's.
    """

    pace: float
    force: float
    phases: Floats
    pocket: Floats

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Person:
        """A random person; their pocket is turned about the vertical, and tilted by some 20 degrees."""
        turn, tilt, roll = rng.uniform(-np.pi, np.pi), rng.normal(0, 0.35), rng.normal(0, 0.35)
        pocket = rotation(0, roll) @ rotation(1, tilt) @ rotation(2, turn)
        return cls(rng.normal(1, 0.08), rng.lognormal(0, 0.25), rng.normal(0, 0.5, len(HARMONICS)), pocket)


def rotation(axis: int, angle: float) -> Floats:
    """The rotation about an axis, (3, 3)."""
    first, second = [other for other in range(3) if other != axis]
    matrix = np.eye(3)
    matrix[first, first] = matrix[second, second] = np.cos(angle)
    matrix[first, second], matrix[second, first] = -np.sin(angle), np.sin(angle)
    return matrix


def recording(person: Person, gait: Gait, rows: int, rng: np.random.Generator) -> Floats:
    """Accelerations in g, (rows, 3): movement and gravity, as a sensor in the pocket measures them."""
    wander = np.cumsum(rng.normal(0, 1, rows)) / np.sqrt(RATE * 10)  # of order 1 after ten seconds
    rate = gait.rate * person.pace * (1 + gait.uneven * np.clip(wander, -1, 1))
    phase = 2 * np.pi * (rng.uniform() + np.cumsum(rate) / RATE)
    strength = person.force * (1 + 0.1 * np.clip(wander[::-1], -1, 1))
    up = sum(
        weight * np.sin((number + 1) * phase + person.phases[number])
        for number, weight in enumerate(HARMONICS)
    )
    moved = np.stack(
        [
            strength * gait.forward * np.sin(phase - np.pi / 2),
            strength * gait.sway * np.sin(phase / 2),
            np.maximum(strength * gait.impact * up, -1.0),  # in flight, a body only falls
        ],
        axis=1,
    )
    moved[:, 2] += 1.0  # gravity
    slack = rotation(1, rng.normal(0, 0.1)) @ person.pocket  # the pocket moves a little between recordings
    if not gait.rate:
        slack = rotation(1, np.pi / 2 + rng.normal(0, 0.2)) @ slack  # a thigh is level
    return moved @ slack.T + rng.normal(0, NOISE, (rows, 3))


def write(folder: Path, persons: int, seconds: int, seed: int) -> None:
    """Writes two recordings of each activity of each person."""
    for number in range(persons):
        person = Person.drawn(np.random.default_rng([seed, number]))
        for activity, (name, gait) in enumerate(GAITS.items()):
            for take in (1, 2):
                rng = np.random.default_rng([seed, number, activity, take])
                values = recording(person, gait, seconds * RATE, rng).tolist()
                rows = (f"{i / RATE:.2f},{x:.3f},{y:.3f},{z:.3f}" for i, (x, y, z) in enumerate(values))
                file = folder / f"p{number + 1:02}" / name / f"{take}.csv"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n".join(["time,x,y,z", *rows]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="Write the folders of the persons here.")
    parser.add_argument("--persons", type=int, default=12, help="Make up this many persons (default: 12).")
    parser.add_argument("--seconds", type=int, default=40, help="Of each recording (default: 40).")
    parser.add_argument("--seed", type=int, default=0, help="Draw by this seed (default: 0).")
    options = parser.parse_args()
    write(options.folder, options.persons, options.seconds, options.seed)
    print(f"{options.folder}: {options.persons} synthetic persons, {', '.join(GAITS)}")


if __name__ == "__main__":
    main()
