"""The distance from the base that a task may bound."""

from dataclasses import dataclass
from math import nan
from typing import ClassVar

import numpy as np
import pytest

from device_runtime.kinds import FedAvg
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.robust.lengths import norm, rejection_reason


def test_the_norm_is_the_distance_from_the_base():
    base = {"w": np.array([1.0, 1.0], np.float32)}
    update = {"w": np.array([4.0, 5.0], np.float32), "new": np.array([12.0], np.float32)}
    assert norm(update, base) == pytest.approx(13.0)  # sqrt(3^2 + 4^2 + 12^2)


BASE = {"w": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, ""),
        (2.0, "it is 4 away from the base, at most 3 is accepted"),
        (nan, "it is nan away from the base, at most 3 is accepted"),
    ],
)
def test_an_update_that_is_not_within_the_distance_is_refused(value, why):
    update = Update("full", {"w": np.full(4, value, np.float32)}, 1, 0.5)
    assert rejection_reason(FedAvg(), update, BASE, 3.0) == why


def test_an_own_kind_that_cannot_compare_an_update_refuses_it():
    @dataclass(frozen=True)
    class Incomparable(FedAvg):
        name: ClassVar[str] = "incomparable"

        def comparable(self, update, base):
            raise LookupError("no tensor 'v'")

    why = rejection_reason(Incomparable(), Update("incomparable", BASE, 1, 0.5), BASE, 3.0)
    assert why.startswith("it cannot be compared with the base: ")
    assert why.endswith("LookupError: no tensor 'v'")
