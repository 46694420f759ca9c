"""Runs that end before their rounds do, and rounds whose deadline is learnt."""

import numpy as np
import pytest

from device_runtime.models.bundles import tensors
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.rounds.run import ResumeOptions, prepare, simulate
from device_runtime.simulation.scenarios import scenario

FLEET = {
    "name": "two",
    "groups": {"quick": {"profile": "pi-5", "share": 0.75}, "slow": {"profile": "pi-zero-2w", "share": 0.25}},
}


class Lines(NullObserver):
    def __init__(self):
        self.lines = []

    def closed(self, line):
        self.lines.append(line)


def play(task, keeping=None, seed=0):
    over = {
        "fleet": FLEET,
        "devices": 8,
        "slow": 20.0,
        "data": {"samples_per_client": 30},
        "task": {"rounds": 6, "round_deadline_s": 20.0, "kinds": [{"name": "few-shot"}], **task},
    }
    watch = Lines()
    return simulate(
        prepare(scenario.load("uniform", over), seed), observer=watch, keeping=keeping
    ), watch.lines


STOPPING = {"stop_after": 1, "stop_gain": 0.5}
"""No round after the first can be better by half of all samples: two rounds, and the first one's model."""


def test_a_run_without_a_gain_ends_and_serves_its_best_model():
    served, lines = play(STOPPING)
    assert [line.round for line in lines] == [1, 2]
    first, _ = play({"rounds": 1})
    for name, value in first.items():
        np.testing.assert_array_equal(served[name], value)


def test_a_run_that_goes_on_from_a_checkpoint_ends_where_it_would_have():
    checkpoints = []
    whole, _ = play(STOPPING, ResumeOptions(keep=checkpoints.append))
    again, lines = play(STOPPING, ResumeOptions(resume=checkpoints[0]))
    assert [line.round for line in lines] == [2]
    assert tensors.encode(again) == tensors.encode(whole)
    done, lines = play(STOPPING, ResumeOptions(resume=checkpoints[1]))
    assert lines == []
    assert tensors.encode(done) == tensors.encode(whole)


@pytest.mark.slow
def test_rounds_become_as_short_as_most_devices_need():
    _, fixed = play({"kinds": [{"name": "full", "settings": {"epochs": 1}}]})
    _, learnt = play({"kinds": [{"name": "full", "settings": {"epochs": 1}}], "deadline_quantile": 0.5})
    took = [[line.closed_s - line.opened_s for line in lines] for lines in (fixed, learnt)]
    assert took[0][0] == pytest.approx(took[1][0])
    assert took[1][-1] < took[0][-1]
