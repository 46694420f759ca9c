"""Drawing policies: those that are shipped, and what one of a user's own may not do."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.drawing import (
    DrawCandidate,
    DrawingError,
    DrawingPolicy,
    EarlierUpdates,
    Uniform,
    drawn,
)
from device_runtime.aggregator.tasks.participants import DeviceTraits
from device_runtime.aggregator.tasks.task import Task, check_effect
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.plugins import load_object

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_drawing.py"
FOUR = [DrawCandidate(DeviceTraits(name)) for name in "abcd"]


def stream():
    return np.random.default_rng(7)


@dataclass(frozen=True)
class Scripted(DrawingPolicy):
    """Draws what its function says."""

    name: ClassVar[str] = "scripted"
    function: object

    def draw(self, candidates, count, number, rng):
        return self.function(candidates)


def test_the_uniform_policy_draws_different_devices_the_same_for_a_seed():
    names = drawn(Uniform(), FOUR, 3, 1, stream())
    assert len(set(names)) == 3
    assert names == drawn(Uniform(), FOUR, 3, 1, stream())
    assert set(drawn(Uniform(), FOUR, 9, 1, stream())) == set("abcd")
    assert drawn(Uniform(), [], 9, 1, stream()) == ()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda some: some, "scripted drew 4 devices for round 2, 4 different; expected 2 different ones"),
        (lambda some: [some[0], some[0]], "scripted drew 2 devices for round 2, 1 different"),
        (
            lambda some: [DrawCandidate(DeviceTraits("x"))],
            "scripted drew x for round 2, which is no candidate",
        ),
    ],
)
def test_a_policy_may_not_draw_too_many_nor_one_twice_nor_a_stranger(function, message):
    with pytest.raises(DrawingError) as caught:
        drawn(Scripted(function), FOUR, 2, 2, stream())
    assert message in str(caught.value)


def test_an_error_of_a_policy_names_its_line():
    with pytest.raises(OwnCodeError, match=r"test_drawing\.py:\d+: ZeroDivisionError"):
        drawn(Scripted(lambda some: 1 / 0), FOUR, 2, 2, stream())


def test_an_unknown_policy_is_refused_with_those_that_there_are():
    with pytest.raises(TaskError, match="no drawing policy is called 'best'; there are uniform"):
        Task(bundle="b", draw="best", devices_per_round=2)
    with pytest.raises(TaskError, match="draw has no effect without devices_per_round"):
        check_effect({"draw": "best"})


def test_the_example_prefers_new_devices_and_then_high_losses():
    losses = {"a": 0.1, "b": 2.0, "c": 0.5}
    candidates = [
        DrawCandidate(DeviceTraits(name), EarlierUpdates(1, 1, losses[name], 1.0)) for name in losses
    ] + FOUR[3:]
    assert drawn(load_object(f"{EXAMPLE}:HighLoss")(), candidates, 2, 3, stream()) == ("d", "b")
